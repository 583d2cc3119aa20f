"""What a simulation found, as values: one report for each policy, with the bounds that they are held against."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from replay.bounds import Bounds
from replay.measures import LoadSeries, NothingAnswered, Served, TokenCounts, load_series, max_share, tokens_by_worker
from replay.simulator.flight import Flight
from replay.stats import Summary, summarize


@dataclass(frozen=True, slots=True)
class Regret:
    """What a policy loses, as shares of all prompt tokens: `capacity` to the size of the cache, whatever the policy;
    `routing` to one pooled LRU cache; `index` is what the router believed to be cached and was not (negative: the
    reverse). `latency_ms` is the mean TTFT beyond that of the central queue."""

    capacity: float | None
    routing: float | None
    index: float
    latency_ms: float


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """Times of all requests that were answered: to the first token, between tokens (each request's mean; None if all
    answers have one token), to the end. `load_cv` is the standard deviation of the workers' requests in flight by
    their mean, over all buckets; `max_share` the largest worker's part of all tokens that were computed.
    `ttft_quantiles_ms` are the 0th to the 100th percentile."""

    hit_ratio: float
    predicted_hit_ratio: float
    ttft_ms: Summary
    ttft_quantiles_ms: tuple[float, ...]
    itl_ms: Summary | None
    e2e_ms: Summary
    load_cv: float
    max_share: float
    regret: Regret
    rejected: int
    wall_s: float
    load: LoadSeries


def policy_report(
    flights: Sequence[Flight], workers: int, bounds: Bounds | None, central_ttft_ms: float, wall_s: float
) -> PolicyReport:
    """Raises NothingAnswered."""
    served = answered(flights)
    prompt_tokens = sum(each.tokens.input for each in served)
    hit_ratio = sum(each.tokens.cached for each in served) / prompt_tokens
    predicted_tokens = sum(flight.predicted_tokens for flight in flights if flight.rejection is None)
    predicted_hit_ratio = predicted_tokens / prompt_tokens
    first_token_ms = [each.ttft_ms for each in served]
    ttft_ms = summarize(first_token_ms)
    itl_ms = [each.itl_ms for each in served if each.itl_ms is not None]
    load = load_series(served, range(workers))
    return PolicyReport(
        hit_ratio=hit_ratio,
        predicted_hit_ratio=predicted_hit_ratio,
        ttft_ms=ttft_ms,
        ttft_quantiles_ms=tuple(np.percentile(first_token_ms, np.arange(101)).tolist()),
        itl_ms=summarize(itl_ms) if itl_ms else None,
        e2e_ms=summarize([each.e2e_ms for each in served]),
        load_cv=load.cv,
        max_share=max_share(tokens_by_worker(served).values()),
        regret=Regret(
            capacity=bounds.infinite - bounds.pooled_lru if bounds else None,
            routing=bounds.pooled_lru - hit_ratio if bounds else None,
            index=predicted_hit_ratio - hit_ratio,
            latency_ms=ttft_ms.mean - central_ttft_ms,
        ),
        rejected=len(flights) - len(served),
        wall_s=wall_s,
        load=load,
    )


def mean_ttft_ms(flights: Sequence[Flight]) -> float:
    """Of the requests that were answered. Raises NothingAnswered."""
    return fmean(each.ttft_ms for each in answered(flights))


def answered(flights: Sequence[Flight]) -> list[Served]:
    """Those that were not rejected. Raises NothingAnswered."""
    served = [_served(flight) for flight in flights if flight.rejection is None]
    if not served:
        raise NothingAnswered(flights[0].rejection)
    return served


def _served(flight: Flight) -> Served:
    assert flight.first_token_s is not None, "an answered request has a first token"
    assert flight.ended_s is not None, "an answered request has an end"
    return Served(
        worker=flight.worker,
        tokens=TokenCounts(flight.request.input_tokens, flight.cached_tokens, flight.output_tokens),
        sent_s=flight.sent_s,
        first_token_s=flight.first_token_s,
        ended_s=flight.ended_s,
    )
