"""Policies that hash a request to its place. They hit a cache without knowing it, as long as keys and places last."""

from dataclasses import dataclass
from math import ceil, inf

import numpy as np

from policies.baselines import least_prefill, least_requests
from policies.parameters import Amount, Factor
from policies.rendezvous import preference
from policies.views import Candidates, Column, RequestView


@dataclass(frozen=True, slots=True)
class Chwbl:
    """Consistent hashing with bounded loads: the first place, in the order of the prompt's head, that has room.

    Room: with this request no more than load_factor times the mean, rounded up. Without a head key: fewest requests.
    Needs no index and no events, survives a restart of the router, and balances by construction. But it knows only the
    head: prompts that share a system prompt longer than it are one key, which spreads over the fleet with load, and
    conversations behind it land anywhere. With few requests in flight the bound is one request, and keys move at once.
    Source: Mirrokni, Thorup, Zadimoghaddam, Consistent Hashing with Bounded Loads (SODA'18); KubeAI's `PrefixHash`,
    with its factor, over a rendezvous order in place of its ring.
    """

    load_factor: Factor = 1.25

    def __call__(self, request: RequestView, candidates: Candidates, /) -> Column:
        if request.head_key is None:
            return least_requests(request, candidates)
        requests = 1 + candidates.active_requests.sum()
        room = ceil(self.load_factor * requests / len(candidates))
        return np.where(candidates.active_requests < room, preference(request.head_key, candidates.keys), inf)


@dataclass(frozen=True, slots=True)
class Session:
    """A session stays on its place, by hash of its key, unless the wait there is `max_gap_s` above the least wait; then
    on its next choice.

    Without a session key: least prefill work. Keeps conversations whole without an index. Blind to what sessions share
    and to how large they are: a few that grow unbalance the fleet. The gap is that of `sticky_until_saturated`.
    Source: session affinity as of HAProxy's `balance hdr`, with rendezvous hashing.
    """

    max_gap_s: Amount = 18.0

    def __call__(self, request: RequestView, candidates: Candidates, /) -> Column:
        if request.session_key is None:
            return least_prefill(request, candidates)
        wait_s = candidates.wait_s
        near = wait_s <= wait_s.min() + self.max_gap_s
        return np.where(near, preference(request.session_key, candidates.keys), inf)


@dataclass(frozen=True, slots=True)
class DualMap:
    """The warmer of the two places that a prefix hashes to, unless the wait there exceeds `slo_s`; then the one with
    less prefill work.

    The prefix is the shortest whose share of the traffic two places can carry, 2 / (number of places); a prompt that is
    popular in full has its longest. Two choices balance nearly as well as all, and a prefix has two copies at most. But
    other places' hits and idle time are out of reach, and when a prefix becomes popular its key, and with it the place
    of all that begin so, changes at once. Without prefixes the head key is used; without that, every place is a choice.
    Source: Yuan et al., DualMap (ICLR'26), with its SLO; it also moves requests that wait already, which a router that
    has sent them cannot.
    """

    slo_s: Amount = 5.0

    def __call__(self, request: RequestView, candidates: Candidates, /) -> Column:
        key = _popular_enough(request, len(candidates))
        pair = np.full(len(candidates), True) if key is None else preference(key, candidates.keys) < 2
        warmest = candidates.cached_tokens[pair].max()
        warm = pair & (candidates.cached_tokens == warmest) & (candidates.wait_s <= self.slo_s)
        return np.where(warm if warm.any() else pair, candidates.prefill_work(request), inf)


def _popular_enough(request: RequestView, places: int) -> int | None:
    if not request.prefixes:
        return request.head_key
    return next((p.key for p in request.prefixes if p.share <= 2 / places), request.prefixes[-1].key)
