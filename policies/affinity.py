"""Policies that first ask whether the request stays with its cache, and only then where load is least."""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from policies.parameters import Amount, Factor, Share
from policies.views import Candidates, Column, RequestView


@dataclass(frozen=True, slots=True)
class StickyUntilSaturated:
    """The least loaded of the places that hold at least `affinity_threshold` of the prompt, until the best of them
    would make it wait `max_gap_s` longer than the best of the others; then the least loaded of all.

    Load is Q + u, or n when the fleet is bound by decoding. Shines in long conversations, where a place either has
    nearly all of a prompt or nothing. Below the threshold it sees the cache through u only, and it lets a wait build up
    to the full gap before it moves anything. Source: llm-d's default, `prefix-cache-affinity-filter` and
    `token-load-scorer`.
    """

    affinity_threshold: Share = 0.8
    max_gap_s: Amount = 18.0
    decode_bound: bool = False

    def __call__(self, request: RequestView, candidates: Candidates, /) -> Column:
        sticky = candidates.cached_tokens >= self.affinity_threshold * request.prompt_tokens
        load = candidates.active_requests if self.decode_bound else candidates.prefill_work(request)
        return np.where(sticky, load, inf) if self._stays(candidates.wait_s, sticky) else load

    def _stays(self, wait_s: Column, sticky: NDArray[np.bool_]) -> bool:
        there_s = wait_s.min(where=sticky, initial=inf)
        elsewhere_s = wait_s.min(where=~sticky, initial=inf)
        return bool(there_s - elsewhere_s <= self.max_gap_s)


@dataclass(frozen=True, slots=True)
class SMetric:
    """A conversation's first turn goes where it is served with the least work; a follow-up stays on the place with the
    longest hit, unless that would miss the SLO: slack * (slo_s + slo_s_per_token * L) to the first token.

    Work is Q + u. Where it is not known whether the prompt is a follow-up, one that is at least half cached somewhere
    is. Shines with agents, whose sessions are long and reuse mostly themselves. A session's place is decided while it
    is short: one that grows huge stays until it misses its SLO. The SLO's constants are the paper's, for a 30B model on
    large GPUs; a smaller worker misses them always, and everything goes by load.
    Source: Wang et al., SMetric (arXiv 2607.08565).
    """

    slo_s: Amount = 1.0
    slo_s_per_token: Amount = 62.5e-6
    slack: Amount = 1.0

    def __call__(self, request: RequestView, candidates: Candidates, /) -> Column:
        warmest = candidates.cached_tokens.max()
        follow_up = 2 * warmest >= request.prompt_tokens if request.follow_up is None else request.follow_up
        limit_s = self.slack * (self.slo_s + self.slo_s_per_token * request.prompt_tokens)
        work = candidates.prefill_work(request)
        home = (candidates.cached_tokens == warmest) & (work / candidates.prefill_tokens_per_s <= limit_s)
        return np.where(home, work, inf) if follow_up and home.any() else work


@dataclass(frozen=True, slots=True)
class TwoTier:
    """Fewest requests while load is uneven; else the longest hit if it is worth it; else the smallest tree.

    Uneven: the most requests exceed the fewest by more than `balance_abs_threshold` and by more than
    `balance_rel_threshold` times. Worth it: the hit is more than `cache_threshold` of the prompt. The tree is what a
    place has cached, and what is on its way there. Simple, and at its best with few long prefixes at even load. Its two
    cliffs are its failures: past the first all affinity is dropped at once, for everyone, and a miss goes to the
    smallest tree whatever the load there, so a worker that restarts is buried. Counts requests, not tokens.
    Source: SGLang's gateway, policy `cache_aware` (newer ones send a miss to the fewest requests).
    """

    cache_threshold: Share = 0.5
    balance_abs_threshold: Amount = 32.0
    balance_rel_threshold: Factor = 1.1

    def __call__(self, request: RequestView, candidates: Candidates, /) -> Column:
        requests = candidates.active_requests
        fewest, most = requests.min(), requests.max()
        if most - fewest > self.balance_abs_threshold and most > self.balance_rel_threshold * fewest:
            return requests
        if candidates.cached_tokens.max() > self.cache_threshold * request.prompt_tokens:
            return candidates.uncached_tokens(request)
        return candidates.tree_tokens + candidates.queued_prefill_tokens


@dataclass(frozen=True, slots=True)
class Preble:
    """Exploit a prefix that is more than half of the prompt: the least loaded of those that hold most of it. Else
    explore: least load + prefill + eviction.

    Load is Q + kappa * d, in prefill tokens; prefill is u; eviction is `reuse` * u, for a full cache drops as many
    tokens as are computed, and `reuse` of them will be asked for again. Shines with long shared documents. A hot prefix
    stays on its holders while they queue: exploiting never looks at the others.
    Source: Srivatsa et al., Preble (ICLR'25), its E2 scheduling. The paper takes load from the last three minutes, the
    worth of each evicted node from its own hits, and copies hot prefixes in the background: we take load as it is now,
    one `reuse` for all, and copy nothing.
    """

    reuse: Share = 0.5
    kappa: Amount = 0.05

    def __call__(self, request: RequestView, candidates: Candidates, /) -> Column:
        load = candidates.queued_prefill_tokens + self.kappa * candidates.decode_tokens
        warmest = candidates.cached_tokens.max()
        if warmest > request.prompt_tokens - warmest:
            return np.where(candidates.cached_tokens == warmest, load, inf)
        return load + candidates.uncached_tokens(request) * (1 + self.reuse)
