"""The distribution of TTFT: a curve of its percentiles for each policy, the slow tail drawn out."""

from collections.abc import Sequence
from dataclasses import dataclass

from replay.html.bars import Mark
from replay.html.numbers import duration
from replay.html.ranking import Ranked
from replay.html.scales import Logarithmic, rounded_logarithmic

PERCENTILES = range(100)
"""The slowest request of all, the 100th, has no place on an axis that never ends."""
MARKED = (0, 50, 75, 90, 95, 99)
TAIL = Logarithmic(1.0, 1 / 100)
"""By the share of requests that are slower: the last tenth has as much room as the nine before it."""

LEAST_HEIGHT_PX = 340
LABEL_PX = 19
MOST_TIMES = 13
LEAST_MS = 0.1
"""Where the axis ends for a fleet that answers in no time."""


@dataclass(frozen=True, slots=True)
class Curve:
    """`points` of an SVG polyline, x in per cent and y in pixels from the top; `end_px` is its last y, and `label_px`
    the middle of its label, moved to where there is room."""

    name: str
    colour: int
    points: str
    end_px: float
    label_px: float
    label: str
    title: str


@dataclass(frozen=True, slots=True)
class Distribution:
    height_px: int
    curves: Sequence[Curve]
    percentiles: Sequence[Mark]
    times: Sequence[Mark]

    @property
    def description(self) -> str:
        return ", ".join(curve.title for curve in self.curves)


def ttft_distribution(ranks: Sequence[Ranked]) -> Distribution:
    height_px = max(LEAST_HEIGHT_PX, LABEL_PX * len(ranks))
    times_ms = [[max(LEAST_MS, each.report.ttft_quantiles_ms[q]) for q in PERCENTILES] for each in ranks]
    scale, marks_ms = rounded_logarithmic(min(map(min, times_ms)), max(map(max, times_ms)), MOST_TIMES)
    heights = [[height_px * (1 - scale.percent(time) / 100) for time in times] for times in times_ms]
    labels_px = spread([ys[-1] for ys in heights], LABEL_PX, height_px)
    return Distribution(
        height_px,
        sorted(map(_curve, ranks, heights, labels_px), key=lambda curve: curve.label_px),
        [Mark(_place(percentile), f"p{percentile}") for percentile in MARKED],
        [Mark(100 - scale.percent(mark), duration(mark)) for mark in marks_ms],
    )


def _curve(each: Ranked, ys: Sequence[float], label_px: float) -> Curve:
    ttft = each.report.ttft_ms
    return Curve(
        name=each.name,
        colour=each.colour,
        points=" ".join(f"{_place(percentile):g},{y:.1f}" for percentile, y in zip(PERCENTILES, ys, strict=True)),
        end_px=round(ys[-1], 1),
        label_px=round(label_px, 1),
        label=duration(ttft.p99),
        title=f"{each.name}: p50 {duration(ttft.p50)}, p90 {duration(ttft.p90)}, p99 {duration(ttft.p99)}",
    )


def _place(percentile: int) -> float:
    return TAIL.percent(1 - percentile / 100)


def spread(wanted: Sequence[float], apart: float, end: float) -> list[float]:
    """Places from apart/2 to end - apart/2, in the order of what is wanted and near it, no two nearer than `apart`.

    There must be room for all of them.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    placed = [0.0] * len(wanted)
    least = apart / 2
    for index in order:
        placed[index] = max(least, wanted[index])
        least = placed[index] + apart
    most = end - apart / 2
    for index in reversed(order):
        placed[index] = min(most, placed[index])
        most = placed[index] - apart
    return placed
