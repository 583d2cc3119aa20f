"""Rendezvous hashing: for each key an order of the places that only the places themselves decide.

A place that joins or leaves moves the keys that it wins or had, and no others. It needs no ring to keep, and the
second, third, ... place of a key are as well spread as the first. Source: Thaler and Ravishankar, Using Name-Based
Mappings to Increase Hit Rates (IEEE/ACM ToN 1998).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest


def preference(key: int, places: Sequence[str]) -> NDArray[np.intp]:
    """The rank of each place in the order of `key` (unsigned 64-bit), shape (places,); 0 is the key's first choice."""
    order = sorted((xxh3_64_intdigest(place.encode(), key), place, i) for i, place in enumerate(places))
    ranks = np.empty(len(order), np.intp)
    ranks[[position for _, _, position in order]] = np.arange(len(order))
    return ranks
