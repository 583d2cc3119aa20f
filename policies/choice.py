"""From costs to a place."""

from math import inf, isnan
from random import Random
from typing import NamedTuple

import numpy as np

from policies.views import Candidates, Column, Policy, RequestView

TIE = 1e-9
"""Costs closer than this are equal: far below one token (or its time in seconds), far above rounding."""


class NoneSuitable(Exception):
    """The policy lets the request go nowhere now. The message says so."""


class Choice(NamedTuple):
    """The chosen candidate's position, and the cost of each candidate in the given order."""

    position: int
    costs: Column


def choose(policy: Policy, request: RequestView, candidates: Candidates, rng: Random) -> Choice:
    """The candidate of lowest cost; ties by one draw from `rng` over keys in sorted order, so that the order in which
    the candidates come cannot matter.

    Raises NoneSuitable when every cost is infinite, ValueError for no candidates and for what are no costs of them.
    """
    if not candidates.keys:
        raise ValueError("cannot choose from no candidates")
    places = len(candidates.keys)
    costs = np.asarray(policy(request, candidates), np.float64)
    if costs.shape != (places,):
        raise ValueError(f"the placement policy gave costs of shape {costs.shape} for {places} candidates")
    lowest = costs.item(costs.argmin())  # or what is not a number, if there is any
    if isnan(lowest):
        raise ValueError(f"the placement policy gave a cost that is not a number: {costs.tolist()}")
    if lowest == inf:
        raise NoneSuitable(f"each of {places} workers is over the placement policy's limit for this request")
    [tied] = (costs <= lowest + TIE).nonzero()
    return Choice(rng.choice(sorted(tied.tolist(), key=candidates.keys.__getitem__)), costs)
