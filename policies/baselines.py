"""Placement by one plain signal: what a cache-aware policy has to beat."""

from collections.abc import Sequence
from math import inf

from policies.rendezvous import preference
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


def least_prefill(request: RequestView, candidates: Sequence[Candidate], /) -> list[float]:
    """cost = Q + u: the least prefill until the first token. The plainest policy that knows the cache.

    Blind to decoding: a worker full of long generations looks idle. Source: llm-d's `token-load-scorer`.
    """
    return [c.prefill_work(request) for c in candidates]


def power_of_two(request: RequestView, candidates: Sequence[Candidate], /) -> list[float]:
    """The fewer requests of two places drawn at random.

    Nearly as even as the least of all, and safe with load that is known late: a herd cannot form on one idle worker.
    The sample is the head of an order that the request's draw gives. Source: Mitzenmacher, The Power of Two Choices in
    Randomized Load Balancing (IEEE TPDS 2001); Envoy's LEAST_REQUEST.
    """
    ranks = preference(request.draw, candidates)
    return [float(c.active_requests) if rank < 2 else inf for c, rank in zip(candidates, ranks, strict=True)]
