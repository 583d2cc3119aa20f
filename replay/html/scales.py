"""From values to places on an axis, and round numbers to mark there."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

SLACK = 1e-9
"""What rounding may have added to a number that was meant to be round."""
MINUTE_S, HOUR_S = 60, 3600
CLOCK_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, HOUR_S, 2 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S)


@dataclass(frozen=True, slots=True)
class Linear:
    """`low` to `high` on 0 to 100."""

    low: float
    high: float

    def percent(self, value: float) -> float:
        return round(100 * (value - self.low) / (self.high - self.low), 3)


@dataclass(frozen=True, slots=True)
class Logarithmic:
    """The same for positive values, each factor as long as any other like it."""

    low: float
    high: float

    def percent(self, value: float) -> float:
        return round(100 * log10(value / self.low) / log10(self.high / self.low), 3)


def rounded(low: float, high: float, most: int) -> tuple[Linear, list[float]]:
    """A scale from not above `low` to not below `high` in at most `most` + 1 round steps, and the places of these."""
    step = _round_step((high - low) or 1.0, most)
    first = floor(low / step + SLACK)
    last = max(ceil(high / step - SLACK), first + 1)
    return Linear(first * step, last * step), [number * step for number in range(first, last + 1)]


def _round_step(span: float, most: int) -> float:
    """The smallest of 1, 2, 5, 10, 20 ... of which at most `most` fit in."""
    least = span / most * (1 - SLACK)
    decade = 10.0 ** floor(log10(least))
    return next(step for step in (decade, 2 * decade, 5 * decade, 10 * decade) if step >= least)


def rounded_logarithmic(low: float, high: float, most: int) -> tuple[Logarithmic, list[float]]:
    """The same for factors: 1, 2, 5, 10 ... if that is at most `most` marks, otherwise powers of ten alone."""
    marks = _around(low, high, (1, 2, 5))
    if len(marks) > most:
        marks = _around(low, high, (1,))
    return Logarithmic(marks[0], marks[-1]), marks


def _around(low: float, high: float, factors: Sequence[int]) -> list[float]:
    """From the last that is not above `low` to the first, and at least the second, that is not below `high`."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 2)
    marks = [factor * 10.0**power for power in powers for factor in factors]
    first = max(place for place, mark in enumerate(marks) if mark <= low * (1 + SLACK))
    last = next(place for place, mark in enumerate(marks) if place > first and mark >= high * (1 - SLACK))
    return marks[first : last + 1]


def clock_marks(span_s: float, most: int) -> list[float]:
    """Times from 0 that a clock would show, at most `most` of them after it."""
    days = ceil(span_s / most / (24 * HOUR_S)) * 24 * HOUR_S
    step_s = next((step for step in CLOCK_STEPS_S if span_s / step <= most), days)
    return [float(number * step_s) for number in range(floor(span_s / step_s) + 1)]
