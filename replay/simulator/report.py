"""What a simulation found, as values: one report for each policy, with the bounds that they are held against."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from replay.bounds import Bounds
from replay.simulator.flight import Flight
from replay.stats import Summary, summarize

Times: TypeAlias = NDArray[np.float64]
LOAD_BUCKETS = 120


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
class LoadSeries:
    """Mean requests in flight of each worker, over LOAD_BUCKETS equal parts of the time until the last answer."""

    bucket_s: float
    workers: tuple[tuple[float, ...], ...]


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


class NothingAnswered(Exception):
    """Every request was rejected. The message has the first one's reason."""


def policy_report(
    flights: Sequence[Flight], workers: int, bounds: Bounds | None, central_ttft_ms: float, wall_s: float
) -> PolicyReport:
    """Raises NothingAnswered."""
    answered = [flight for flight in flights if flight.rejection is None]
    if not answered:
        raise NothingAnswered(flights[0].rejection)
    prompt_tokens = sum(flight.request.input_tokens for flight in answered)
    hit_ratio = sum(flight.cached_tokens for flight in answered) / prompt_tokens
    predicted_hit_ratio = sum(flight.predicted_tokens for flight in answered) / prompt_tokens
    first_token_ms = [_first_token_ms(flight) for flight in answered]
    ttft_ms = summarize(first_token_ms)
    itl_ms = list(_between_tokens_ms(answered))
    load = load_series(answered, workers)
    return PolicyReport(
        hit_ratio=hit_ratio,
        predicted_hit_ratio=predicted_hit_ratio,
        ttft_ms=ttft_ms,
        ttft_quantiles_ms=tuple(np.percentile(first_token_ms, np.arange(101)).tolist()),
        itl_ms=summarize(itl_ms) if itl_ms else None,
        e2e_ms=summarize([(_ended_s(flight) - flight.sent_s) * 1e3 for flight in answered]),
        load_cv=_load_cv(np.array(load.workers)),
        max_share=_max_share(answered, workers),
        regret=Regret(
            capacity=bounds.infinite - bounds.pooled_lru if bounds else None,
            routing=bounds.pooled_lru - hit_ratio if bounds else None,
            index=predicted_hit_ratio - hit_ratio,
            latency_ms=ttft_ms.mean - central_ttft_ms,
        ),
        rejected=len(flights) - len(answered),
        wall_s=wall_s,
        load=load,
    )


def mean_ttft_ms(flights: Sequence[Flight]) -> float:
    """Of the requests that were answered. Raises NothingAnswered."""
    answered = [flight for flight in flights if flight.rejection is None]
    if not answered:
        raise NothingAnswered(flights[0].rejection)
    return fmean(map(_first_token_ms, answered))


def load_series(flights: Sequence[Flight], workers: int) -> LoadSeries:
    until_s = max(map(_ended_s, flights))
    edges = np.linspace(0.0, until_s, LOAD_BUCKETS + 1)
    bucket_s = until_s / LOAD_BUCKETS
    rows = []
    for worker in range(workers):
        mine = [flight for flight in flights if flight.worker == worker]
        in_flight_s = _elapsed(edges, [flight.sent_s for flight in mine]) - _elapsed(edges, map(_ended_s, mine))
        rows.append(tuple((np.diff(in_flight_s) / bucket_s).tolist()))
    return LoadSeries(bucket_s, tuple(rows))


def _elapsed(edges: Times, since: Iterable[float]) -> Times:
    """At each edge, the time since all of `since` that lie before it, summed up."""
    elapsed: Times = np.maximum(0.0, np.subtract.outer(edges, np.array([*since]))).sum(axis=1)
    return elapsed


def _load_cv(load: Times) -> float:
    """`load` [workers, buckets]."""
    return float(load.std(axis=0).sum() / load.mean(axis=0).sum())


def _max_share(flights: Sequence[Flight], workers: int) -> float:
    computed = [0] * workers
    for flight in flights:
        computed[flight.worker] += flight.request.input_tokens - flight.cached_tokens + flight.output_tokens
    return max(computed) / sum(computed)


def _between_tokens_ms(flights: Sequence[Flight]) -> Iterator[float]:
    for flight in flights:
        if flight.output_tokens > 1:
            decoding_ms = (_ended_s(flight) - flight.sent_s) * 1e3 - _first_token_ms(flight)
            yield decoding_ms / (flight.output_tokens - 1)


def _first_token_ms(flight: Flight) -> float:
    assert flight.first_token_s is not None, "an answered request has a first token"
    return (flight.first_token_s - flight.sent_s) * 1e3


def _ended_s(flight: Flight) -> float:
    assert flight.ended_s is not None, "an answered request has an end"
    return flight.ended_s
