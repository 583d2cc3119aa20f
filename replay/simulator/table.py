"""A comparison as a table for people."""

from rich.console import Group, RenderableType
from rich.table import Table

from replay.simulator.comparison import Comparison
from replay.simulator.report import PolicyReport

COLUMNS = (
    "policy",
    "hit %",
    "regret: routing",
    "index",
    "TTFT ms: mean",
    "p50",
    "p90",
    "p99",
    "regret",
    "ITL ms",
    "e2e s",
    "load CV",
    "max share %",
    "rejected",
    "took s",
)


def as_table(comparison: Comparison) -> RenderableType:
    spec, trace = comparison.scenario.spec, comparison.trace
    table = Table(
        title=f"{len(trace.requests):,} requests ({trace.format}) on {spec.workers} workers of "
        f"{spec.blocks:,} x {spec.block_size} tokens",
        caption=_bounds(comparison),
        caption_justify="left",
    )
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "policy" else "right")
    for name, report in comparison.policies.items():
        table.add_row(name, *_cells(report))
    return Group(table)


def _bounds(comparison: Comparison) -> str:
    central = f"Mean TTFT from one central queue over the pooled cache: {comparison.central_ttft_ms:,.0f} ms."
    if comparison.bounds is None:
        return f"The trace has lengths only: what its prompts share, and so any hit, cannot be known. {central}"
    return (
        f"Bounds of the hit ratio: endless cache {comparison.bounds.infinite:.1%}, one pooled LRU cache "
        f"{comparison.bounds.pooled_lru:.1%}, pooled with Belady's eviction {comparison.bounds.pooled_belady:.1%}. {central}"
    )


def _cells(report: PolicyReport) -> tuple[str, ...]:
    ttft, regret = report.ttft_ms, report.regret
    return (
        f"{report.hit_ratio:.1%}",
        "-" if regret.routing is None else f"{regret.routing:.1%}",
        f"{regret.index:.1%}",
        f"{ttft.mean:,.0f}",
        f"{ttft.p50:,.0f}",
        f"{ttft.p90:,.0f}",
        f"{ttft.p99:,.0f}",
        f"{regret.latency_ms:+,.0f}",
        "-" if report.itl_ms is None else f"{report.itl_ms.mean:.1f}",
        f"{report.e2e_ms.mean / 1e3:.2f}",
        f"{report.load_cv:.2f}",
        f"{report.max_share:.1%}",
        f"{report.rejected:,}",
        f"{report.wall_s:.1f}",
    )
