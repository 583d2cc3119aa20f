"""A comparison as a table for people, 80 columns wide."""

from collections.abc import Callable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from replay.simulator.comparison import Comparison
from replay.simulator.report import PolicyReport

COLUMNS: dict[str, Callable[[PolicyReport], str]] = {
    "hit\n%": lambda report: f"{report.hit_ratio:.1%}"[:-1],
    "pooled\n- hit": lambda report: "-" if report.regret.routing is None else f"{report.regret.routing:.1%}"[:-1],
    "TTFT\nmean": lambda report: f"{report.ttft_ms.mean:,.0f}",
    "ms\np50": lambda report: f"{report.ttft_ms.p50:,.0f}",
    "\np99": lambda report: f"{report.ttft_ms.p99:,.0f}",
    "ITL\nms": lambda report: "-" if report.itl_ms is None else f"{report.itl_ms.mean:.1f}",
    "e2e\ns": lambda report: f"{report.e2e_ms.mean / 1e3:.2f}",
    "load\nCV": lambda report: f"{report.load_cv:.2f}",
    "most\n%": lambda report: f"{report.max_share:.1%}"[:-1],
    "refused\n": lambda report: f"{report.rejected:,}",
}


def as_table(comparison: Comparison) -> RenderableType:
    spec, trace = comparison.scenario.spec, comparison.trace
    title = (
        f"{len(trace.requests):,} requests ({trace.format}), {spec.workers} workers of {spec.blocks:,} blocks of "
        f"{spec.block_size} tokens"
    )
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("policy", overflow="fold")
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for name, report in comparison.policies.items():
        table.add_row(name, *(cell(report) for cell in COLUMNS.values()))
    return Group(table, _bounds(comparison))


def _bounds(comparison: Comparison) -> str:
    central = f"Mean TTFT from one central queue over the pooled cache: {comparison.central_ttft_ms:,.0f} ms."
    bounds = comparison.bounds
    if bounds is None:
        return f"The trace has lengths only: what its prompts share, and so any hit, cannot be known. {central}"
    return (
        f"Hit ratio of an endless cache {bounds.infinite:.1%}, of one pooled LRU cache {bounds.pooled_lru:.1%}, with "
        f"Belady's eviction {bounds.pooled_belady:.1%}. {central}"
    )
