"""Load over time: for each policy a small map, a row for each worker, darker where more requests are in flight."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from replay.html.bars import Mark
from replay.html.numbers import SPACE, percent
from replay.html.ranking import Ranked
from replay.html.scales import HOUR_S, MINUTE_S, Linear, clock_marks

LEVELS = 8
NARROWEST, WIDEST = 2, 200
"""From the first shade to the last: factors."""
CLOCK_MARKS = 4


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """`runs` are SVG paths of cells one high and one wide, by level; level 0 is not drawn."""

    title: str
    y: int
    runs: Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Panel:
    """`width` is the run's part of the longest one's time, in per cent: all panels share a time axis."""

    name: str
    facts: str
    width: float
    buckets: int
    rows: Sequence[WorkerRow]


@dataclass(frozen=True, slots=True)
class LoadMaps:
    """`levels`: from how many requests in flight each shade on stands."""

    panels: Sequence[Panel]
    workers: int
    times: Sequence[Mark]
    levels: Sequence[str]


def load_maps(ranks: Sequence[Ranked]) -> LoadMaps:
    thresholds = _thresholds(ranks)
    longest_s = max(_span_s(each) for each in ranks)
    time = Linear(0.0, longest_s)
    return LoadMaps(
        [_panel(each, thresholds, time.percent(_span_s(each))) for each in ranks],
        len(ranks[0].report.load.workers),
        [Mark(time.percent(mark), _clock(mark)) for mark in clock_marks(longest_s, CLOCK_MARKS)],
        [f"{threshold:,.3g}" for threshold in thresholds],
    )


def _span_s(each: Ranked) -> float:
    load = each.report.load
    return load.bucket_s * len(load.workers[0])


def _thresholds(ranks: Sequence[Ranked]) -> list[float]:
    """Equal factors apart, over where most loads lie: shades tell ratios, and no single peak makes all else pale."""
    loads = np.array([row for each in ranks for row in each.report.load.workers]).ravel()
    low, high = np.percentile(loads[loads > 0], [10, 99.5])
    edges = np.geomspace(max(low, high / WIDEST), max(high, NARROWEST * low), LEVELS + 1)
    return [float(f"{edge:.2g}") for edge in edges[:-1]]


def _panel(each: Ranked, thresholds: Sequence[float], width: float) -> Panel:
    report = each.report
    return Panel(
        each.name,
        f"CV {report.load_cv:.2f}, largest share {percent(report.max_share)}",
        width,
        len(report.load.workers[0]),
        [_row(worker, loads, thresholds) for worker, loads in enumerate(report.load.workers)],
    )


def _row(worker: int, loads: Sequence[float], thresholds: Sequence[float]) -> WorkerRow:
    mean = sum(loads) / len(loads)
    title = f"worker {worker}: {mean:.1f} requests in flight on average, {max(loads):.1f} at its peak"
    return WorkerRow(title, worker, sorted(_runs(worker, [bisect_right(thresholds, load) for load in loads]).items()))


def _runs(y: int, levels: Sequence[int]) -> dict[int, str]:
    """Neighbours of one level become one rectangle."""
    paths: dict[int, str] = {}
    start = 0
    for level, cells in groupby(levels):
        length = len(list(cells))
        if level:
            paths[level] = paths.get(level, "") + f"M{start} {y}h{length}v1h-{length}z"
        start += length
    return paths


def _clock(seconds: float) -> str:
    if seconds >= HOUR_S:
        return f"{seconds / HOUR_S:g}{SPACE}h"
    return f"{seconds / MINUTE_S:g}{SPACE}min" if seconds >= MINUTE_S else f"{seconds:g}{SPACE}s"
