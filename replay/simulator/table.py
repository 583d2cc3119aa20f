"""A comparison as a table for people."""

from collections.abc import Callable, Mapping

from rich.console import Group, RenderableType

from replay.simulator.comparison import Comparison
from replay.simulator.report import PolicyReport
from replay.table import COLUMNS, HIT, measured_table, percent

POLICY_COLUMNS: Mapping[str, Callable[[PolicyReport], str]] = {
    HIT: COLUMNS[HIT],
    "pooled\n- hit": lambda report: percent(report.regret.routing),
    **COLUMNS,
}


def as_table(comparison: Comparison) -> RenderableType:
    spec, trace = comparison.scenario.spec, comparison.trace
    title = (
        f"{len(trace.requests):,} requests ({trace.format}), {spec.workers} workers of {spec.blocks:,} blocks of "
        f"{spec.block_size} tokens"
    )
    return Group(measured_table(title, "policy", comparison.policies, POLICY_COLUMNS), _bounds(comparison))


def _bounds(comparison: Comparison) -> str:
    central = f"Mean TTFT from one central queue over the pooled cache: {comparison.central_ttft_ms:,.0f} ms."
    bounds = comparison.bounds
    if bounds is None:
        return f"The trace has lengths only: what its prompts share, and so any hit, cannot be known. {central}"
    return (
        f"Hit ratio of an endless cache {bounds.infinite:.1%}, of one pooled LRU cache {bounds.pooled_lru:.1%}, with "
        f"Belady's eviction {bounds.pooled_belady:.1%}. {central}"
    )
