"""A live run as tables for people."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table

from replay.live.report import LiveReport, LiveResult
from replay.measures import NO_TOKENS
from replay.table import measured_table, percent, plain_table

SHOWN_FAILURES = 5


def as_table(result: LiveResult) -> RenderableType:
    report, trace = result.report, result.trace
    title = f"{report.requests:,} requests ({trace.format}) to {result.url} in {report.duration_s:,.0f} s"
    parts: list[RenderableType] = [measured_table(title, "model", {result.model: report})]
    if report.workers:
        parts.append(_workers(report))
    return Group(*parts, *_remarks(result))


def _workers(report: LiveReport) -> Table:
    table = plain_table("", "worker", "prompt\ntokens", "hit\n%", "answer\ntokens", "share of the\nwork, %")
    computed = sum(report.workers.values(), NO_TOKENS).computed
    for name, tokens in report.workers.items():
        share = percent(tokens.computed / computed if computed else None)
        table.add_row(name, f"{tokens.input:,}", percent(tokens.hit_ratio), f"{tokens.output:,}", share)
    return table


def _remarks(result: LiveResult) -> Iterator[str]:
    report = result.report
    if result.infinite_hit_ratio is None:
        yield "The trace has lengths only: its prompts share nothing, so there is nothing to hit."
    else:
        yield f"Hit ratio of an endless cache {result.infinite_hit_ratio:.1%}."
    if report.hit_ratio is None:
        yield (
            "The endpoint does not say what was cached (vLLM does with --enable-prompt-tokens-details, SGLang with "
            "--enable-cache-report), and no --worker-url was given to ask."
        )
    yield f"Prompts had {report.tokens.input:,} tokens, in the trace {report.trace_input_tokens:,}."
    yield f"Requests were sent {report.lag_ms.p50:.1f} ms (p50), {report.lag_ms.p99:.1f} ms (p99) after they were due."
    for kind in report.failures[:SHOWN_FAILURES]:
        yield f"Failed: {kind.requests:,} requests, the first because {kind.message}"
