"""Summaries of measured times."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, quantiles


@dataclass(frozen=True, slots=True)
class Summary:
    """Mean, median, 90th and 99th percentile, in the unit of the values that it was made of."""

    mean: float
    p50: float
    p90: float
    p99: float


def summarize(values: Sequence[float]) -> Summary:
    """Percentiles are interpolated between the two nearest values, as numpy does. Raises ValueError for no values."""
    if len(values) == 1:
        return Summary(values[0], values[0], values[0], values[0])
    percentiles = quantiles(values, n=100, method="inclusive")
    return Summary(mean=fmean(values), p50=percentiles[49], p90=percentiles[89], p99=percentiles[98])
