"""Small fleets for the tests of policies."""

from collections.abc import Sequence
from math import isfinite
from random import Random
from typing import NamedTuple

import numpy as np

from policies.choice import choose
from policies.registry import make_policy
from policies.views import Candidates, Policy, PrefixShare, RequestView


class Worker(NamedTuple):
    """A row of `Candidates`: idle and empty, prefilling 1000 tokens/s."""

    key: str
    cached_tokens: int = 0
    queued_prefill_tokens: float = 0.0
    active_requests: int = 0
    decode_tokens: int = 0
    mean_decode_tokens: float = 0.0
    waiting_requests: int = 0
    last_placed: int = 0
    prefill_tokens_per_s: float = 1000.0
    tree_tokens: int = 0


def worker(key: str, **fields: float) -> Worker:
    return Worker(key)._replace(**fields)


def candidates(fleet: Sequence[Worker]) -> Candidates:
    keys, *columns = zip(*fleet, strict=True)
    return Candidates(keys, *(np.array(column, np.float64) for column in columns))


def chosen(policy: Policy, request: RequestView, fleet: Sequence[Worker], rng: Random) -> str:
    return fleet[choose(policy, request, candidates(fleet), rng).position].key


def costs(policy: str | Policy, request: RequestView, *fleet: Worker) -> list[float]:
    return list((make_policy(policy) if isinstance(policy, str) else policy)(request, candidates(fleet)))


def best(policy: str | Policy, request: RequestView, *fleet: Worker) -> set[str]:
    """The workers among which the policy leaves the choice to the draw; empty when it refuses the request."""
    found = costs(policy, request, *fleet)
    lowest = min(found)
    return {c.key for c, cost in zip(fleet, found, strict=True) if cost == lowest and isfinite(lowest)}


def prefixes(*shares: float, block_size: int = 64) -> tuple[PrefixShare, ...]:
    """Prefixes of 1, 2, 4, ... blocks with these shares."""
    return tuple(PrefixShare(100 + i, block_size << i, share) for i, share in enumerate(shares))
