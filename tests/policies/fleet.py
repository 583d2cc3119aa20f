"""Small fleets for the tests of policies."""

from collections.abc import Sequence
from math import isfinite

from policies.registry import make_policy
from policies.views import Candidate, Policy, PrefixShare, RequestView


def worker(key: str, **fields: float) -> Candidate:
    """An idle, empty worker that prefills 1000 tokens/s, but for `fields`."""
    return Candidate(key, 0, 0.0, 0, 0, 0.0, 0, 0, prefill_tokens_per_s=1000.0)._replace(**fields)


def costs(policy: str | Policy, request: RequestView, *fleet: Candidate) -> Sequence[float]:
    return (make_policy(policy) if isinstance(policy, str) else policy)(request, fleet)


def best(policy: str | Policy, request: RequestView, *fleet: Candidate) -> set[str]:
    """The workers among which the policy leaves the choice to the draw; empty when it refuses the request."""
    found = costs(policy, request, *fleet)
    lowest = min(found)
    return {c.key for c, cost in zip(fleet, found, strict=True) if cost == lowest and isfinite(lowest)}


def prefixes(*shares: float, block_size: int = 64) -> tuple[PrefixShare, ...]:
    """Prefixes of 1, 2, 4, ... blocks with these shares."""
    return tuple(PrefixShare(100 + i, block_size << i, share) for i, share in enumerate(shares))
