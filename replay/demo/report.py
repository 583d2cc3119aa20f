"""What the demo found out, as a table for people and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from replay.client import Answer
from replay.stats import Summary, summarize


@dataclass(frozen=True, slots=True)
class PolicyReport:
    requests: int
    prompt_tokens: int
    cached_tokens: int
    predicted_cached_tokens: int
    ttft_ms: Summary

    @property
    def hit_ratio(self) -> float:
        """Of all prompt tokens."""
        return self.cached_tokens / self.prompt_tokens


@dataclass(frozen=True, slots=True)
class DemoReport:
    """`largest_hit_ratio` is that of one endless cache for all workers. Cache sizes are in blocks."""

    model: str
    workers: int
    block_size: int
    blocks_per_worker: int
    working_set_blocks: int
    policies: Mapping[str, PolicyReport]
    largest_hit_ratio: float
    outputs_identical: bool


def policy_report(answers: Sequence[Answer]) -> PolicyReport:
    return PolicyReport(
        requests=len(answers),
        prompt_tokens=sum(answer.usage.prompt_tokens for answer in answers),
        cached_tokens=sum(answer.usage.cached_tokens or 0 for answer in answers),
        predicted_cached_tokens=sum(answer.predicted_cached_tokens or 0 for answer in answers),
        ttft_ms=summarize([answer.ttft_ms for answer in answers]),
    )


def as_json(report: DemoReport) -> dict[str, Any]:
    """Ratios and milliseconds rounded to what they can mean."""
    return {
        "model": report.model,
        "workers": report.workers,
        "policies": {name: _policy_json(policy) for name, policy in report.policies.items()},
        "largest_hit_ratio": round(report.largest_hit_ratio, 4),
        "outputs_identical": report.outputs_identical,
    }


def _policy_json(policy: PolicyReport) -> dict[str, Any]:
    return {
        "requests": policy.requests,
        "prompt_tokens": policy.prompt_tokens,
        "cached_tokens": policy.cached_tokens,
        "hit_ratio": round(policy.hit_ratio, 4),
        "ttft_ms": {name: round(getattr(policy.ttft_ms, name), 1) for name in ("mean", "p50", "p99")},
        "predicted_cached_tokens": policy.predicted_cached_tokens,
    }


def as_table(report: DemoReport) -> RenderableType:
    table = Table(title=f"{report.model} on {report.workers} workers, greedy")
    table.add_column()
    for name in [*report.policies, "largest possible"]:
        table.add_column(name, justify="right")
    columns = [_cells(policy) for policy in report.policies.values()]
    largest = {"hit ratio": f"{report.largest_hit_ratio:.3f}"}
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns), largest.get(name, ""))
    return Group(table, *_remarks(report))


def _cells(policy: PolicyReport) -> dict[str, str]:
    return {
        "requests": f"{policy.requests}",
        "prompt tokens": f"{policy.prompt_tokens:,}",
        "cached tokens": f"{policy.cached_tokens:,}",
        "  as the router predicted": f"{policy.predicted_cached_tokens:,}",
        "hit ratio": f"{policy.hit_ratio:.3f}",
        "TTFT mean, ms": f"{policy.ttft_ms.mean:,.0f}",
        "TTFT p50, ms": f"{policy.ttft_ms.p50:,.0f}",
        "TTFT p99, ms": f"{policy.ttft_ms.p99:,.0f}",
    }


def _remarks(report: DemoReport) -> list[str]:
    blocks, needed = report.blocks_per_worker, report.working_set_blocks
    (base_name, base), (name, policy) = report.policies.items()
    return [
        f"{name} / {base_name}: hit ratio {_times(policy.hit_ratio, base.hit_ratio)}, "
        f"mean TTFT {_times(policy.ttft_ms.mean, base.ttft_ms.mean)}, "
        f"answers {'identical' if report.outputs_identical else 'different'}",
        f"A worker caches {blocks} blocks of {report.block_size} tokens; the whole workload needs {needed}.",
        "Largest possible: one cache for all workers that never evicts.",
    ]


def _times(value: float, base: float) -> str:
    return f"x {value / base:.2f}" if base else "-"
