"""Axes hold all their values and end with round numbers, whatever the values are."""

from itertools import pairwise
from math import log10

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.html.curves import spread
from replay.html.scales import clock_marks, rounded, rounded_logarithmic

VALUES = st.floats(-1e6, 1e6)
POSITIVE = st.floats(1e-3, 1e8)


def is_round(number: float) -> bool:
    return any(abs(number / 10 ** round(log10(number / factor)) - factor) < 1e-6 for factor in (1, 2, 5))


@given(VALUES, VALUES, st.integers(2, 8))
def test_a_linear_axis(one, other, most):
    low, high = sorted((one, other))
    if high - low < 1e-6:
        high = low
    scale, marks = rounded(low, high, most)
    assert -1e-3 <= scale.percent(low) <= scale.percent(high) <= 100 + 1e-3
    assert (scale.percent(marks[0]), scale.percent(marks[-1])) == (0, 100)
    assert 2 <= len(marks) <= most + 2
    assert is_round(marks[1] - marks[0])


@given(POSITIVE, POSITIVE)
def test_a_logarithmic_axis(one, other):
    low, high = sorted((one, other))
    scale, marks = rounded_logarithmic(low, high, most=13)
    assert -1e-3 <= scale.percent(low) <= scale.percent(high) <= 100 + 1e-3
    assert (scale.percent(marks[0]), scale.percent(marks[-1])) == (0, 100)
    assert 2 <= len(marks) <= 13
    assert all(map(is_round, marks))


@pytest.mark.parametrize(
    ("span_s", "marks"),
    [
        (7, [0, 2, 4, 6]),
        (212, [0, 60, 120, 180]),
        (3600, [0, 900, 1800, 2700, 3600]),
        (5 * 86400, [0, 172800, 345600]),
    ],
)
def test_a_time_axis_has_the_steps_of_a_clock(span_s, marks):
    assert clock_marks(span_s, most=4) == marks


@given(st.lists(st.floats(0, 100), min_size=1, max_size=10))
def test_labels_are_moved_apart_and_keep_their_order(wanted):
    placed = spread(wanted, apart=10, end=100)
    ordered = sorted(placed)
    assert ordered[0] >= 5 - 1e-9
    assert ordered[-1] <= 95 + 1e-9
    assert all(after - before >= 10 - 1e-9 for before, after in pairwise(ordered))
    assert [placed[i] for i in sorted(range(len(wanted)), key=lambda i: wanted[i])] == ordered


def test_labels_with_room_stay():
    assert spread([50, 20, 80], apart=10, end=100) == [50, 20, 80]
