"""All numbers of all policies."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeAlias

from replay.html.numbers import points, signed
from replay.html.ranking import Ranked
from replay.simulator.report import PolicyReport
from replay.stats import Summary

NONE = "–"

Number: TypeAlias = Callable[[PolicyReport], float | None]


@dataclass(frozen=True, slots=True)
class Column:
    """`better` is -1 where less is better, 1 where more is, 0 where neither."""

    group: str
    title: str
    number: Number
    text: Callable[[float], str]
    better: int = -1


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    best: bool


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    cells: Sequence[Cell]


@dataclass(frozen=True, slots=True)
class Table:
    """`groups` are the heads above `titles`, each with the number of columns that it spans."""

    title: str
    groups: Sequence[tuple[str, int]]
    titles: Sequence[str]
    rows: Sequence[Row]


def cache_table(ranks: Sequence[Ranked], *, has_prefixes: bool) -> Table:
    columns = [
        *(_hit_columns() if has_prefixes else ()),
        Column("regret", "latency, ms", lambda r: r.regret.latency_ms, lambda value: signed(value, 1)),
        Column("load", "CV", lambda r: r.load_cv, "{:.2f}".format),
        Column("load", "largest share, %", lambda r: 100 * r.max_share, "{:.1f}".format),
        Column("requests", "rejected", lambda r: r.rejected, "{:,}".format),
        Column("simulation", "took, s", lambda r: r.wall_s, "{:.1f}".format, better=0),
    ]
    return _table("Cache and balance", ranks, columns)


def times_table(ranks: Sequence[Ranked]) -> Table:
    columns = [
        *_time_columns("TTFT, ms", lambda r: r.ttft_ms, 0),
        *_time_columns("time between tokens (ITL), ms", lambda r: r.itl_ms, 1),
        *_time_columns("end to end, ms", lambda r: r.e2e_ms, 0),
    ]
    return _table("Times", ranks, columns)


def _hit_columns() -> Iterator[Column]:
    yield Column("hit ratio, %", "achieved", lambda r: 100 * r.hit_ratio, "{:.1f}".format, better=1)
    yield Column("hit ratio, %", "predicted", lambda r: 100 * r.predicted_hit_ratio, "{:.1f}".format, better=0)
    yield Column("regret", "capacity, points", lambda r: r.regret.capacity, points, better=0)
    yield Column("regret", "routing, points", lambda r: r.regret.routing, points)
    yield Column("regret", "index, points", lambda r: r.regret.index, points, better=0)


def _time_columns(group: str, summary: Callable[[PolicyReport], Summary | None], digits: int) -> Iterator[Column]:
    for name in ("mean", "p50", "p90", "p99"):
        yield Column(group, name, partial(_part, summary, name), f"{{:,.{digits}f}}".format)


def _part(summary: Callable[[PolicyReport], Summary | None], name: str, report: PolicyReport) -> float | None:
    values = summary(report)
    return None if values is None else float(getattr(values, name))


def _table(title: str, ranks: Sequence[Ranked], columns: Sequence[Column]) -> Table:
    cells = [_cells(column, [each.report for each in ranks]) for column in columns]
    return Table(
        title,
        [(group, len(list(members))) for group, members in groupby(columns, lambda column: column.group)],
        [column.title for column in columns],
        [Row(each.name, row) for each, row in zip(ranks, zip(*cells, strict=True), strict=True)],
    )


def _cells(column: Column, reports: Sequence[PolicyReport]) -> list[Cell]:
    """A column. Of those that read the same as the best, each is best; where all do, none is."""
    values = [column.number(report) for report in reports]
    texts = [NONE if value is None else column.text(value) for value in values]
    known = [value for value in values if value is not None]
    if not column.better or len(set(texts)) < 2:
        return [Cell(text, False) for text in texts]
    best = column.text(max(known, key=lambda value: value * column.better))
    return [Cell(text, text == best) for text in texts]
