"""Rendezvous hashing: for each key an order of the places that only the places themselves decide.

A place that joins or leaves moves the keys that it wins or had, and no others. It needs no ring to keep, and the
second, third, ... place of a key are as well spread as the first. Source: Thaler and Ravishankar, Using Name-Based
Mappings to Increase Hit Rates (IEEE/ACM ToN 1998).
"""

from collections.abc import Sequence

from xxhash import xxh3_64_intdigest

from policies.views import Candidate


def preference(key: int, candidates: Sequence[Candidate]) -> list[int]:
    """The rank of each candidate in the order of `key` (unsigned 64-bit); 0 is the key's first choice."""
    order = sorted((xxh3_64_intdigest(c.key.encode(), key), c.key, i) for i, c in enumerate(candidates))
    ranks = [0] * len(order)
    for rank, (_, _, position) in enumerate(order):
        ranks[position] = rank
    return ranks
