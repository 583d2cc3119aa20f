"""Placement that ignores the cache: what a cache-aware policy has to beat."""

from collections.abc import Sequence

from policies.views import Candidate, RequestView


def round_robin(request: RequestView, candidates: Sequence[Candidate], /) -> list[float]:
    """In turn: the place that waited longest since its last request.

    Kept for each place and not as one running number, so that requests for two models that alternate still visit every
    worker of each. Source: HAProxy `balance roundrobin`, without weights.
    """
    return [float(c.last_placed) for c in candidates]


def random(request: RequestView, candidates: Sequence[Candidate], /) -> list[float]:
    """All the same; the tie is broken by the seeded draw."""
    return [0.0] * len(candidates)


def least_requests(request: RequestView, candidates: Sequence[Candidate], /) -> list[float]:
    """The fewest requests in flight (Envoy's LEAST_REQUEST over all hosts, without its sampling)."""
    return [float(c.active_requests) for c in candidates]
