"""Policies that price each place by itself, from signals of load and cache together."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from policies.parameters import Amount
from policies.views import SHARE_WINDOW, Candidate, RequestView

CLASS = 2
"""LMetric's class of a request: its first four blocks, the third of `RequestView.prefixes`."""


def lmetric(request: RequestView, candidates: Sequence[Candidate], /) -> list[float]:
    """cost = (Q + u) * (n + 1), without the holders of a hot spot.

    A product of prefill work and batch size needs no weights: they cancel in the comparison. It misleads where a class
    of requests is a larger part of the traffic than its holders are of the fleet: their hits keep winning while they
    fall behind, so they are left out then. Ignores how long the contexts are that decode beside the request.
    Source: Zhang et al., LMetric (OSDI'26), score and hot-spot detector.
    """
    crowded = _hot_spot(request, candidates)
    return [inf if c.key in crowded else c.prefill_work(request) * (c.active_requests + 1) for c in candidates]


def _hot_spot(request: RequestView, candidates: Sequence[Candidate]) -> frozenset[str]:
    """The holders of the request's class, if they are fewer than it needs.

    LMetric's condition is x / (1 - x) > holders / others, with x the class's share; that is x > holders / all. It must
    have held for 2 * holders requests running. Over so many requests x can have grown by no more than their part of
    the window, so a share above the bound by that part has been above it all along.
    """
    if len(request.prefixes) <= CLASS:
        return frozenset()
    prefix = request.prefixes[CLASS]
    holders = frozenset(c.key for c in candidates if c.cached_tokens >= prefix.tokens)
    lasting_share = prefix.share - 2 * len(holders) / SHARE_WINDOW
    return holders if lasting_share > len(holders) / len(candidates) else frozenset()


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

    def __call__(self, request: RequestView, candidates: Sequence[Candidate], /) -> list[float]:
        return [self.prefill_load_scale * c.prefill_work(request) + c.decode_tokens for c in candidates]


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

    def __call__(self, request: RequestView, candidates: Sequence[Candidate], /) -> list[float]:
        predicted_s = [self._predicted_s(request, c) for c in candidates]
        return [inf if seconds > self.slo_s else seconds for seconds in predicted_s]

    def _predicted_s(self, request: RequestView, c: Candidate) -> float:
        uncached = c.uncached_tokens(request)
        pairs = uncached * (request.prompt_tokens - uncached / 2)
        return c.prefill_work(request) / c.prefill_tokens_per_s + self.attention_s_per_pair * pairs
