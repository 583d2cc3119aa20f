"""Policies that price each place by itself, from signals of load and cache together."""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from policies.parameters import Amount
from policies.views import SHARE_WINDOW, Candidates, Column, RequestView

CLASS = 2
"""LMetric's class of a request: its first four blocks, the third of `RequestView.prefixes`."""


def lmetric(request: RequestView, candidates: Candidates, /) -> Column:
    """cost = (Q + u) * (n + 1), without the holders of a hot spot.

    A product of prefill work and batch size needs no weights: they cancel in the comparison. It misleads where a class
    of requests is a larger part of the traffic than its holders are of the fleet: their hits keep winning while they
    fall behind, so they are left out then. Ignores how long the contexts are that decode beside the request.
    Source: Zhang et al., LMetric (OSDI'26), score and hot-spot detector.
    """
    price = candidates.prefill_work(request) * (candidates.active_requests + 1)
    return np.where(_hot_spot(request, candidates), inf, price)


def _hot_spot(request: RequestView, candidates: Candidates) -> NDArray[np.bool_]:
    """Who holds the request's class, if they are fewer than it needs; else nobody.

    LMetric's condition is x / (1 - x) > holders / others, with x the class's share; that is x > holders / all. It must
    have held for 2 * holders requests running. Over so many requests x can have grown by no more than their part of
    the window, so a share above the bound by that part has been above it all along.
    """
    if len(request.prefixes) <= CLASS:
        return np.full(len(candidates), False)
    prefix = request.prefixes[CLASS]
    holds = candidates.cached_tokens >= prefix.tokens
    holders = np.count_nonzero(holds)
    lasting_share = prefix.share - 2 * holders / SHARE_WINDOW
    return holds & (lasting_share > holders / len(candidates))


@dataclass(frozen=True, slots=True)
class Dynamo:
    """cost = prefill_load_scale * (Q + u) + d, in tokens: the KV router of NVIDIA Dynamo 1.6.

    Dynamo counts in blocks, which divides all costs by the same number, and gives part credit for blocks in host memory
    (0.75) and on disk (0.25), which our index does not follow. Its default scale of 1 counts a KV token that is held
    like one to prefill: a few long contexts outweigh any hit, and agentic traffic suffers. 16 was the best found on
    Mooncake's conversation trace.
    Source: Dynamo 1.6, lib/kv-router/src/scheduling/selector.
    """

    prefill_load_scale: Amount = 1.0

    def __call__(self, request: RequestView, candidates: Candidates, /) -> Column:
        return self.prefill_load_scale * candidates.prefill_work(request) + candidates.decode_tokens


@dataclass(frozen=True, slots=True)
class Ttft:
    """cost = predicted time to the first token in seconds: the wait, then this prefill. Past `slo_s`: not there.

    A prefill takes u / R, and more where it attends to a long context: attention_s_per_pair for each pair of a new
    token and one before it, u * (L - u / 2) of them. The request is refused when every place would miss the SLO, which
    keeps the others' within theirs under overload. Optimises one request's TTFT and nothing else: it moves a prompt
    for any gain, scatters copies of it, and piles decodes onto one worker.

    The default SLO is Mooncake's; the attention time is the quadratic term (4.2e-10 s per squared token, that is per
    half pair) of the timing profile that Dynamo's simulator has. Its transfer time has no counterpart here: nothing
    moves between our workers. Source: Qin et al., Mooncake (FAST'25), section on KVCache-centric scheduling.
    """

    slo_s: Amount = 30.0
    attention_s_per_pair: Amount = 8.4e-10

    def __call__(self, request: RequestView, candidates: Candidates, /) -> Column:
        uncached = candidates.uncached_tokens(request)
        pairs = uncached * (request.prompt_tokens - uncached / 2)
        wait_s = candidates.prefill_work(request) / candidates.prefill_tokens_per_s
        predicted_s = wait_s + self.attention_s_per_pair * pairs
        return np.where(predicted_s > self.slo_s, inf, predicted_s)
