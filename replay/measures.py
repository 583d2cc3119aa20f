"""What a replay measures, in virtual time or in real: the times of requests, and how evenly they load the workers."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from replay.stats import Summary
from replay.traces.trace import Trace

Times: TypeAlias = NDArray[np.float64]
LOAD_BUCKETS = 120


class NothingAnswered(Exception):
    """No request was answered. The message has the first one's reason."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of prompts, of those what was cached, and of answers."""

    input: int
    cached: int
    output: int

    @property
    def computed(self) -> int:
        """What a worker had to compute for them."""
        return self.input - self.cached + self.output

    @property
    def hit_ratio(self) -> float | None:
        return self.cached / self.input if self.input else None

    def __add__(self, other: "TokenCounts") -> "TokenCounts":
        return TokenCounts(self.input + other.input, self.cached + other.cached, self.output + other.output)

    def __sub__(self, other: "TokenCounts") -> "TokenCounts":
        return TokenCounts(self.input - other.input, self.cached - other.cached, self.output - other.output)


NO_TOKENS = TokenCounts(0, 0, 0)


@dataclass(frozen=True, slots=True)
class Served:
    """A request that was answered by `worker`; times count from the replay's beginning."""

    worker: Hashable
    tokens: TokenCounts
    sent_s: float
    first_token_s: float
    ended_s: float

    @property
    def ttft_ms(self) -> float:
        return (self.first_token_s - self.sent_s) * 1e3

    @property
    def itl_ms(self) -> float | None:
        """The mean time between tokens; None for an answer of one."""
        if self.tokens.output < 2:
            return None
        return (self.ended_s - self.first_token_s) * 1e3 / (self.tokens.output - 1)

    @property
    def e2e_ms(self) -> float:
        return (self.ended_s - self.sent_s) * 1e3


@dataclass(frozen=True, slots=True)
class LoadSeries:
    """Mean requests in flight of each worker, over LOAD_BUCKETS equal parts of the time until the last answer."""

    bucket_s: float
    workers: tuple[tuple[float, ...], ...]

    @property
    def cv(self) -> float:
        """The standard deviation of the workers' requests in flight by their mean, over all buckets."""
        load = np.array(self.workers)
        return float(load.std(axis=0).sum() / load.mean(axis=0).sum())


def load_series(served: Sequence[Served], workers: Iterable[Hashable]) -> LoadSeries:
    """In the order of `workers`."""
    until_s = max(each.ended_s for each in served)
    edges = np.linspace(0.0, until_s, LOAD_BUCKETS + 1)
    bucket_s = until_s / LOAD_BUCKETS
    rows = []
    for worker in workers:
        mine = [each for each in served if each.worker == worker]
        in_flight_s = _elapsed(edges, [each.sent_s for each in mine]) - _elapsed(edges, [each.ended_s for each in mine])
        rows.append(tuple((np.diff(in_flight_s) / bucket_s).tolist()))
    return LoadSeries(bucket_s, tuple(rows))


def _elapsed(edges: Times, since: Sequence[float]) -> Times:
    """At each edge, the time since all of `since` that lie before it, summed up."""
    elapsed: Times = np.maximum(0.0, np.subtract.outer(edges, np.array(since))).sum(axis=1)
    return elapsed


def tokens_by_worker(served: Iterable[Served]) -> dict[Hashable, TokenCounts]:
    counts: dict[Hashable, TokenCounts] = {}
    for each in served:
        counts[each.worker] = counts.get(each.worker, NO_TOKENS) + each.tokens
    return counts


def max_share(workers: Iterable[TokenCounts]) -> float:
    """The largest worker's part of all tokens that were computed."""
    computed = [worker.computed for worker in workers]
    return max(computed) / sum(computed)


class Measured(Protocol):
    """What table and JSON show of every replay. None: it cannot be known."""

    @property
    def hit_ratio(self) -> float | None: ...

    @property
    def predicted_hit_ratio(self) -> float | None: ...

    @property
    def ttft_ms(self) -> Summary: ...

    @property
    def itl_ms(self) -> Summary | None: ...

    @property
    def e2e_ms(self) -> Summary: ...

    @property
    def load_cv(self) -> float | None: ...

    @property
    def max_share(self) -> float | None: ...

    @property
    def rejected(self) -> int: ...


def trace_json(trace: Trace) -> dict[str, Any]:
    return {
        "rows": len(trace.requests),
        "span_s": trace.span_s,
        "input_tokens": trace.input_tokens,
        "format": trace.format,
    }


def measured_json(measured: Measured) -> dict[str, Any]:
    """Shares of prompt tokens, and milliseconds, rounded to what they can mean."""
    return {
        "hit_ratio": rounded(measured.hit_ratio),
        "ttft_ms": summary_json(measured.ttft_ms),
        "itl_ms": summary_json(measured.itl_ms) if measured.itl_ms else None,
        "e2e_ms": summary_json(measured.e2e_ms),
        "load_cv": rounded(measured.load_cv),
        "max_share": rounded(measured.max_share),
        "predicted_hit_ratio": rounded(measured.predicted_hit_ratio),
        "rejected": measured.rejected,
    }


def summary_json(summary: Summary) -> dict[str, float]:
    return {name: round(value, 3) for name, value in asdict(summary).items()}


def rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)
