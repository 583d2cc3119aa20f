"""Replays as rows of a table for people, 80 columns wide."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from rich import box
from rich.table import Table

from replay.measures import Measured

AnyMeasured = TypeVar("AnyMeasured", bound=Measured)

HIT = "hit\n%"
COLUMNS: Mapping[str, Callable[[Measured], str]] = {
    HIT: lambda measured: percent(measured.hit_ratio),
    "TTFT\nmean": lambda measured: f"{measured.ttft_ms.mean:,.0f}",
    "ms\np50": lambda measured: f"{measured.ttft_ms.p50:,.0f}",
    "\np99": lambda measured: f"{measured.ttft_ms.p99:,.0f}",
    "ITL\nms": lambda measured: "-" if measured.itl_ms is None else f"{measured.itl_ms.mean:.1f}",
    "e2e\ns": lambda measured: f"{measured.e2e_ms.mean / 1e3:.2f}",
    "load\nCV": lambda measured: "-" if measured.load_cv is None else f"{measured.load_cv:.2f}",
    "most\n%": lambda measured: percent(measured.max_share),
    "refused\n": lambda measured: f"{measured.rejected:,}",
}


def measured_table(
    title: str,
    label: str,
    rows: Mapping[str, AnyMeasured],
    columns: Mapping[str, Callable[[AnyMeasured], str]] = COLUMNS,
) -> Table:
    """A row for each of `rows`, named in the column `label`."""
    table = plain_table(title, label, *columns)
    for name, measured in rows.items():
        table.add_row(name, *(cell(measured) for cell in columns.values()))
    return table


def plain_table(title: str, label: str, *numbers: str) -> Table:
    """Without rows: a column of names that may be long, and columns of numbers."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(label, overflow="fold")
    for column in numbers:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def percent(share: float | None) -> str:
    """With a digit after the point, the sign left to the column's head."""
    return "-" if share is None else f"{share:.1%}"[:-1]
