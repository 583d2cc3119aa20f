"""Charts with a bar for each policy: hit ratios beside their bounds, and regrets."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from replay.bounds import Bounds
from replay.html.numbers import MINUS, percent, signed
from replay.html.ranking import Ranked
from replay.html.scales import rounded
from replay.simulator.report import Regret

TICKS = 4
POINTS = "points of the hit ratio"


@dataclass(frozen=True, slots=True)
class Mark:
    """A place on an axis, in per cent of its length."""

    percent: float
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """`start` and `end` in per cent of the axis; `start` is where 0 is."""

    name: str
    leads: bool
    start: float
    end: float
    label: str


@dataclass(frozen=True, slots=True)
class BarChart:
    """`bounds` are lines across all bars."""

    id: str
    title: str
    note: str
    unit: str
    bars: Sequence[Bar]
    ticks: Sequence[Mark]
    bounds: Sequence[Mark]

    @property
    def description(self) -> str:
        """For those who cannot see it."""
        return ", ".join([*(f"{bar.name} {bar.label}" for bar in self.bars), *(mark.label for mark in self.bounds)])


@dataclass(frozen=True, slots=True)
class _Value:
    name: str
    leads: bool
    value: float
    label: str


def hit_ratios(ranks: Sequence[Ranked], bounds: Bounds) -> BarChart:
    return _chart(
        "hits",
        "Hit ratio against its bounds",
        "The share of prompt tokens found in cache. Up to one pooled LRU cache a better placement could win, from "
        "there to Belady's a better eviction, and from there to the endless one only more memory.",
        "% of all prompt tokens",
        [_Value(r.name, r.leads, 100 * r.report.hit_ratio, percent(r.report.hit_ratio)) for r in ranks],
        {
            f"{name} {percent(share)}": 100 * share
            for name, share in (
                ("endless cache", bounds.infinite),
                ("pooled, Belady", bounds.pooled_belady),
                ("pooled, LRU", bounds.pooled_lru),
            )
        },
    )


def regrets(ranks: Sequence[Ranked], bounds: Bounds | None) -> Iterator[BarChart]:
    """Only that of latency, where there are no bounds."""
    if bounds is not None:
        yield _chart(
            "routing",
            "Routing",
            "The hit ratio of one pooled LRU cache less the one achieved: what placement lost.",
            POINTS,
            _values(ranks, lambda regret: 100 * (regret.routing or 0.0)),
        )
    yield _chart(
        "latency",
        "Latency",
        "Mean TTFT beyond that of one central queue, over the same workers and a cache that they share.",
        "ms",
        _values(ranks, lambda regret: regret.latency_ms),
    )
    if bounds is None:
        return
    yield _chart(
        "index",
        "Index",
        "Hits that the router expected less those that came: right of zero it trusted too much, left too little.",
        POINTS,
        _values(ranks, lambda regret: 100 * regret.index),
    )
    capacity = 100 * (bounds.infinite - bounds.pooled_lru)
    yield _chart(
        "capacity",
        "Capacity",
        "The endless cache less the pooled one: what the fleet's memory is too small for, whoever places.",
        POINTS,
        [_Value("every policy", False, capacity, signed(capacity, _digits([capacity])))],
    )


def _values(ranks: Sequence[Ranked], value: Callable[[Regret], float]) -> list[_Value]:
    values = [value(each.report.regret) for each in ranks]
    digits = _digits(values)
    return [_Value(r.name, r.leads, each, signed(each, digits)) for r, each in zip(ranks, values, strict=True)]


def _digits(values: Sequence[float]) -> int:
    """After the point: what the largest of them needs to have three in all."""
    largest = max(map(abs, values))
    return 0 if largest >= 100 else 1 if largest >= 1 else 2


def _chart(
    id: str, title: str, note: str, unit: str, values: Sequence[_Value], bounds: Mapping[str, float] | None = None
) -> BarChart:
    bounds = bounds or {}
    numbers = [0.0, *(each.value for each in values), *bounds.values()]
    scale, marks = rounded(min(numbers), max(numbers), TICKS)
    zero = scale.percent(0.0)
    return BarChart(
        id,
        title,
        note,
        unit,
        [Bar(each.name, each.leads, zero, scale.percent(each.value), each.label) for each in values],
        [Mark(scale.percent(mark), f"{mark:,.9g}".replace("-", MINUS)) for mark in marks],
        [Mark(scale.percent(value), label) for label, value in bounds.items()],
    )
