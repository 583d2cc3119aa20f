"""From costs to a place."""

from collections.abc import Sequence
from math import inf
from random import Random
from typing import NamedTuple

from policies.views import Candidate, Policy, RequestView

TIE = 1e-9
"""Costs closer than this are equal: far below one token (or its time in seconds), far above rounding."""


class NoneSuitable(Exception):
    """The policy lets the request go nowhere now. The message says so."""


class Choice(NamedTuple):
    """The chosen candidate's position, and the cost of each candidate in the given order."""

    position: int
    costs: tuple[float, ...]


def choose(policy: Policy, request: RequestView, candidates: Sequence[Candidate], rng: Random) -> Choice:
    """The candidate of lowest cost; ties by one draw from `rng` over keys in sorted order, so that the order in which
    the candidates come cannot matter.

    Raises NoneSuitable when every cost is infinite, ValueError for no candidates.
    """
    if not candidates:
        raise ValueError("cannot choose from no candidates")
    costs = tuple(policy(request, candidates))
    lowest = min(costs)
    if lowest == inf:
        raise NoneSuitable(f"each of {len(candidates)} workers is over the placement policy's limit for this request")
    tied = sorted((c.key, i) for i, (c, cost) in enumerate(zip(candidates, costs, strict=True)) if cost <= lowest + TIE)
    return Choice(rng.choice(tied)[1], costs)
