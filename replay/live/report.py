"""What a live run found, as values."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from replay.arrivals import LoadSpec
from replay.errors import RequestFailed
from replay.live.api import Api
from replay.live.client import TimedAnswer
from replay.live.run import Sent
from replay.measures import (
    NO_TOKENS,
    NothingAnswered,
    Served,
    TokenCounts,
    load_series,
    max_share,
    measured_json,
    rounded,
    summary_json,
    tokens_by_worker,
    trace_json,
)
from replay.stats import Summary, summarize
from replay.traces.trace import Trace

NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Failures:
    """Requests that failed alike: with the same status (None: without an answer), and words that differ only in
    numbers. `message` is the first one's."""

    status: int | None
    message: str
    requests: int


@dataclass(frozen=True, slots=True)
class LiveReport:
    """Of the requests that were answered, in tokens as the endpoint counts them (`trace_input_tokens`: as the trace
    does); times as in the simulator's reports.

    `hit_ratio` is what the answers' usage says, or else the workers' counters, or None. `load_cv` and `max_share` are
    None where nobody says which worker served what, or if those that were asked did nothing. `lag_ms` is how much
    later than planned requests were sent: a client that lags cannot keep up, and what it measures is its own slowness.
    """

    hit_ratio: float | None
    predicted_hit_ratio: float | None
    ttft_ms: Summary
    itl_ms: Summary | None
    e2e_ms: Summary
    load_cv: float | None
    max_share: float | None
    rejected: int
    failures: tuple[Failures, ...]
    requests: int
    tokens: TokenCounts
    trace_input_tokens: int
    duration_s: float
    lag_ms: Summary
    workers: Mapping[str, TokenCounts]


def live_report(sent: Sequence[Sent], counted: Mapping[str, TokenCounts]) -> LiveReport:
    """`counted` is what the workers' counters say of the run, empty for unknown workers. Raises NothingAnswered."""
    failures = _failures(each.answer for each in sent if isinstance(each.answer, RequestFailed))
    answers = [each.answer for each in sent if isinstance(each.answer, TimedAnswer)]
    if not answers:
        raise NothingAnswered(failures[0].message)
    served = [_served(each.sent_s, each.answer) for each in sent if isinstance(each.answer, TimedAnswer)]
    tokens = sum((each.tokens for each in served), NO_TOKENS)
    names = {answer.worker for answer in answers}
    workers = counted or ({} if None in names else _by_name(served))
    itl_ms = [each.itl_ms for each in served if each.itl_ms is not None]
    return LiveReport(
        hit_ratio=_hit_ratio(answers, tokens, counted),
        predicted_hit_ratio=_predicted_hit_ratio(answers, tokens),
        ttft_ms=summarize([each.ttft_ms for each in served]),
        itl_ms=summarize(itl_ms) if itl_ms else None,
        e2e_ms=summarize([each.e2e_ms for each in served]),
        load_cv=None if None in names else load_series(served, names).cv,
        max_share=max_share(workers.values()) if any(each.computed for each in workers.values()) else None,
        rejected=len(sent) - len(served),
        failures=failures,
        requests=len(sent),
        tokens=tokens,
        trace_input_tokens=sum(each.request.input_tokens for each in sent if isinstance(each.answer, TimedAnswer)),
        duration_s=max(each.ended_s for each in served),
        lag_ms=summarize([(each.sent_s - each.due_s) * 1e3 for each in sent]),
        workers=workers,
    )


def _served(sent_s: float, answer: TimedAnswer) -> Served:
    usage = answer.usage
    tokens = TokenCounts(usage.prompt_tokens, usage.cached_tokens or 0, usage.completion_tokens)
    return Served(answer.worker, tokens, sent_s, answer.first_token_s, answer.ended_s)


def _by_name(served: Sequence[Served]) -> dict[str, TokenCounts]:
    return dict(sorted((str(worker), tokens) for worker, tokens in tokens_by_worker(served).items()))


def _hit_ratio(answers: Sequence[TimedAnswer], tokens: TokenCounts, counted: Mapping[str, TokenCounts]) -> float | None:
    if all(answer.usage.cached_tokens is not None for answer in answers):
        return tokens.hit_ratio
    return sum(counted.values(), NO_TOKENS).hit_ratio


def _predicted_hit_ratio(answers: Sequence[TimedAnswer], tokens: TokenCounts) -> float | None:
    predicted = [each.predicted_cached_tokens for each in answers if each.predicted_cached_tokens is not None]
    return sum(predicted) / tokens.input if len(predicted) == len(answers) else None


def _failures(errors: Iterable[RequestFailed]) -> tuple[Failures, ...]:
    """The most frequent first."""
    alike: dict[tuple[int | None, str], list[RequestFailed]] = {}
    for error in errors:
        alike.setdefault((error.status, NUMBER.sub("", str(error))), []).append(error)
    kinds = (Failures(kind[0].status, str(kind[0]), len(kind)) for kind in alike.values())
    return tuple(sorted(kinds, key=lambda kind: -kind.requests))


@dataclass(frozen=True, slots=True)
class LiveResult:
    """A trace, where it was sent and how, and what came of it."""

    trace: Trace
    load: LoadSpec
    url: str
    api: Api
    model: str
    seed: int
    report: LiveReport
    infinite_hit_ratio: float | None
    """The bound for any fleet; None for a trace of lengths only."""


def as_json(result: LiveResult) -> dict[str, Any]:
    """What `--json` writes: the simulator's form, as far as both have the same to say."""
    report = result.report
    return {
        "trace": trace_json(result.trace),
        "endpoint": {"url": result.url, "api": result.api, "model": result.model},
        "load": {**asdict(result.load), "seed": result.seed},
        "bounds": {"infinite": rounded(result.infinite_hit_ratio)},
        "live": {
            **measured_json(report),
            "requests": report.requests,
            "tokens": asdict(report.tokens),
            "trace_input_tokens": report.trace_input_tokens,
            "duration_s": round(report.duration_s, 3),
            "lag_ms": summary_json(report.lag_ms),
            "failures": [asdict(kind) for kind in report.failures],
            "workers": {name: asdict(tokens) for name, tokens in report.workers.items()},
        },
    }
