"""The fit against parameters that are known, and against everything else that it might have been."""

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.calibration.fit import fit_profile, nonnegative_fit, residuals
from replay.calibration.measure import DecodePoint, PrefillPoint
from worker.timing import Profile

PREFILL_TOKENS = (32, 64, 128, 256, 512, 1024, 2048)
DECODES = [(n, n * (tokens + 32)) for tokens in (32, 256) for n in (1, 2, 4, 8, 16, 32)]

PROFILES = st.builds(
    Profile,
    st.floats(0, 50),
    st.just(0.0) | st.floats(1e-3, 1),
    st.just(0.0) | st.floats(1e-6, 1e-4),
    st.floats(0.5, 50),
    st.just(0.0) | st.floats(1e-2, 2),
    st.just(0.0) | st.floats(1e-4, 1e-2),
)


def points(profile: Profile) -> tuple[list[PrefillPoint], list[DecodePoint]]:
    def decode_ms(sequences: int, kv_tokens: int) -> float:
        return float(profile.decode_ms(sequences, np.float64(kv_tokens), 1))

    prefill = [PrefillPoint(t, profile.prefill_ms(t) + decode_ms(1, t)) for t in PREFILL_TOKENS]
    return prefill, [DecodePoint(n, kv_tokens, decode_ms(n, kv_tokens)) for n, kv_tokens in DECODES]


@given(PROFILES)
def test_times_of_a_profile_give_the_profile_back(profile):
    fitted = fit_profile(*points(profile))
    assert astuple(fitted) == pytest.approx(astuple(profile), rel=1e-3, abs=1e-6)


@given(PROFILES, st.randoms(use_true_random=False))
def test_times_with_noise_give_a_profile_that_is_about_as_far_off(profile, random):
    prefill, decode = points(profile)
    noisy = [PrefillPoint(each.tokens, each.ttft_ms * random.uniform(0.98, 1.02)) for each in prefill]
    slow = [DecodePoint(e.sequences, e.kv_tokens, e.step_ms * random.uniform(0.98, 1.02)) for e in decode]
    fitted = residuals(fit_profile(noisy, slow), noisy, slow)
    assert len(fitted) == len(prefill) + len(decode)
    assert np.sqrt(np.mean([each.error**2 for each in fitted])) <= 0.04


MATRICES = st.integers(1, 3).flatmap(
    lambda columns: st.lists(st.lists(st.floats(0.1, 10), min_size=columns, max_size=columns), min_size=3, max_size=8)
)


@given(MATRICES, st.data())
def test_no_other_coefficients_without_a_negative_one_fit_better(rows, data):
    columns = np.array(rows)
    points, count = columns.shape
    values = np.array(data.draw(st.lists(st.floats(-5, 10), min_size=points, max_size=points)))
    weights = np.array(data.draw(st.lists(st.floats(0.1, 10), min_size=points, max_size=points)))
    best = np.array(nonnegative_fit(columns, values, weights))
    assert (best >= 0).all()

    def residual(x) -> float:
        return float(np.square(weights * (columns @ x - values)).sum())

    other = np.array(data.draw(st.lists(st.floats(0, 10), min_size=count, max_size=count)))
    for share in (1.0, 0.1, 0.001):
        assert residual(best) <= residual(best + share * (other - best)) * (1 + 1e-9) + 1e-9


def test_there_is_a_profile_for_any_times():
    """Steps in proportion to their sequences leave nothing for the constant; one length of prompts leaves all open."""
    profile = fit_profile([PrefillPoint(10, 1.0)], [DecodePoint(n, 100.0 * n, 8.0 * n) for n in (1, 2, 4)])
    assert profile.decode_step_ms == pytest.approx(0.08)
    assert float(profile.decode_ms(4, np.float64(400), 1)) == pytest.approx(32, rel=0.01)


def test_what_was_measured_stands_beside_what_the_profile_says():
    profile = Profile(10.0, 0.1, 0.0, 5.0, 1.0, 0.0)
    first, step = residuals(profile, [PrefillPoint(100, 20.0)], [DecodePoint(4, 50.0, 10.0)])
    assert (first.fitted_ms, first.error) == (26.0, pytest.approx(0.3))
    assert (step.fitted_ms, step.error) == (9.0, pytest.approx(-0.1))
