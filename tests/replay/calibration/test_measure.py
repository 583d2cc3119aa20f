"""Measuring workers whose timing is known, in virtual time."""

from dataclasses import astuple

import numpy as np
import pytest

from replay.calibration.engine import TokenTimes
from replay.calibration.fit import fit_profile
from replay.calibration.measure import Measurement, decode_point, make_plan
from replay.errors import CalibrationFailed
from worker.timing import Profile

PROFILE = Profile(12.0, 0.08, 2e-5, 6.0, 0.25, 4e-4)
VOCABULARY = range(1000, 32_000)


async def measure(engine, plan=make_plan(2048, 32), on_answered=lambda answers: None):  # noqa: B008 - frozen
    return await Measurement(engine, VOCABULARY, np.random.default_rng(5), on_answered).run(plan)


@pytest.mark.parametrize(
    "profile", [PROFILE, Profile(0.0, 0.3, 0.0, 20.0, 0.0, 0.0), Profile(5, 0.01, 1e-6, 8, 0, 1e-3)]
)
async def test_a_worker_that_follows_a_profile_gives_it_back(make_engine, profile):
    prefill, decode = await measure(make_engine(profile))
    assert astuple(fit_profile(prefill, decode)) == pytest.approx(astuple(profile), rel=1e-3, abs=1e-6)


async def test_no_prompt_is_like_another_or_too_long(make_engine):
    engine, answered, plan = make_engine(PROFILE), [], make_plan(512, 4)
    await measure(engine, plan, answered.append)
    assert (
        len({tuple(prompt[:8]) for prompt in engine.prompts}) == len(engine.prompts) == sum(answered) == plan.requests
    )
    assert max(map(len, engine.prompts)) == 512
    assert {token for prompt in engine.prompts for token in prompt} <= set(VOCABULARY)


async def test_what_a_worker_does_not_run_together_is_left_out(make_engine):
    """Of 8 and more sequences it runs only 4 at once: the last to begin does so when the first has ended."""
    prefill, decode = await measure(make_engine(PROFILE, max_num_seqs=4))
    assert {point.sequences for point in decode} == {1, 2, 4}
    assert astuple(fit_profile(prefill, decode)) == pytest.approx(astuple(PROFILE), rel=1e-3, abs=1e-6)


def test_a_plan_needs_no_long_prompt():
    plan = make_plan(1, 1)
    assert (plan.prefill, plan.decode) == ((1,), ((1, 1), (1, 1)))


def times(first_s: float, step_s: float, tokens: int) -> TokenTimes:
    return TokenTimes(0.0, tuple(first_s + step_s * n for n in range(tokens)))


def test_steps_are_counted_where_all_decode():
    early, late = times(1.0, 0.5, 21), times(3.0, 0.5, 21)  # together from 3.0 to 11.0: 16 steps
    point = decode_point(100, [late, early])
    assert point is not None
    assert (point.sequences, point.step_ms) == (2, 500)
    assert point.kv_tokens == 2 * 100 + (5 + 1) + 2 * 7.5, "early has 5 tokens at the beginning, late has 1"


def test_too_few_steps_together_say_nothing():
    assert decode_point(100, [times(1.0, 0.5, 21), times(8.0, 0.5, 21)]) is None


async def test_tokens_in_heaps_cannot_be_timed():
    class Heaps:
        async def answer(self, prompts, answer_tokens):
            return [TokenTimes(0.0, (1.0,) * answer_tokens) for _ in prompts]

    with pytest.raises(CalibrationFailed, match="do not come one by one"):
        await measure(Heaps())
