"""Summaries against numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.stats import summarize

TIMES_MS = st.lists(st.floats(min_value=0, max_value=1e6, allow_subnormal=False), min_size=1, max_size=300)


@given(TIMES_MS)
def test_agrees_with_numpy(values):
    summary = summarize(values)
    expected = [np.mean(values), *np.percentile(values, [50, 90, 99])]
    assert [summary.mean, summary.p50, summary.p90, summary.p99] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_no_values_is_an_error():
    with pytest.raises(ValueError, match="at least"):
        summarize([])
