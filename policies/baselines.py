"""Placement by one plain signal: what a cache-aware policy has to beat."""

from math import inf

import numpy as np

from policies.rendezvous import preference
from policies.views import Candidates, Column, RequestView


def round_robin(request: RequestView, candidates: Candidates, /) -> Column:
    """In turn: the place that waited longest since its last request.

    Kept for each place and not as one running number, so that requests for two models that alternate still visit every
    worker of each. Source: HAProxy `balance roundrobin`, without weights.
    """
    return candidates.last_placed


def random(request: RequestView, candidates: Candidates, /) -> Column:
    """All the same; the tie is broken by the seeded draw."""
    return np.zeros(len(candidates))


def least_requests(request: RequestView, candidates: Candidates, /) -> Column:
    """The fewest requests in flight (Envoy's LEAST_REQUEST over all hosts, without its sampling)."""
    return candidates.active_requests


def least_prefill(request: RequestView, candidates: Candidates, /) -> Column:
    """cost = Q + u: the least prefill until the first token. The plainest policy that knows the cache.

    Blind to decoding: a worker full of long generations looks idle. Source: llm-d's `token-load-scorer`.
    """
    return candidates.prefill_work(request)


def power_of_two(request: RequestView, candidates: Candidates, /) -> Column:
    """The fewer requests of two places drawn at random.

    Nearly as even as the least of all, and safe with load that is known late: a herd cannot form on one idle worker.
    The sample is the head of an order that the request's draw gives. Source: Mitzenmacher, The Power of Two Choices in
    Randomized Load Balancing (IEEE TPDS 2001); Envoy's LEAST_REQUEST.
    """
    return np.where(preference(request.draw, candidates.keys) < 2, candidates.active_requests, inf)
