"""Time models against the numbers that they are made of."""

from pathlib import Path

import numpy as np
import pytest

from worker.plan import Draw, ScheduledSequence, StepPlan
from worker.request import SamplingParams
from worker.timing import Linear, Polynomial, Profile, Timing, make_timing, pass_ms

PROFILE = Profile(5.0, 0.1, 1e-6, 4.0, 0.5, 1e-4)


def test_polynomial_is_dynamos() -> None:
    timing = Polynomial()
    assert timing.prefill_ms(1) == pytest.approx(16.516604)
    assert timing.prefill_ms(8192) == pytest.approx(4.209989e-07 * 8192**2 + 1.518344e-02 * 8192 + 16.50142)
    assert timing.decode_ms(3, np.float64(0), 1000) == pytest.approx(5.74)
    assert timing.decode_ms(3, np.float64(500), 1000) == pytest.approx(-25.74 / 4 + 54.01 / 2 + 5.74)
    assert timing.decode_ms(3, np.float64(2000), 1000) == timing.decode_ms(3, np.float64(1000), 1000), "share <= 1"


def test_linear_has_a_rate_and_a_step() -> None:
    assert Linear(2000.0, 7.0).prefill_ms(500) == 250.0
    assert Linear(2000.0, 7.0).decode_ms(9, np.float64(12345), 1) == 7.0


def test_a_profile_adds_up() -> None:
    assert PROFILE.prefill_ms(1000) == pytest.approx(5 + 100 + 1)
    assert PROFILE.decode_ms(4, np.float64(10_000), 1) == pytest.approx(4 + 2 + 1)


@pytest.mark.parametrize("timing", [Polynomial(), Linear(1000.0, 3.0), PROFILE])
def test_many_passes_at_once_take_what_each_takes(timing: Timing) -> None:
    """Bit by bit: a simulation may not depend on how its passes are taken together."""
    tokens = np.arange(0, 300_000, 1237, dtype=np.float64)
    together = np.broadcast_to(timing.decode_ms(5, tokens, 262_144), tokens.shape)
    assert together.tolist() == [float(timing.decode_ms(5, each, 262_144)) for each in tokens]


def scheduled(start: int, tokens: int, index: int | None) -> ScheduledSequence:
    draw = None if index is None else Draw(SamplingParams(max_tokens=9), index)
    return ScheduledSequence("x", (7,) * tokens, start, (0,), draw)


@pytest.mark.parametrize(
    ("sequences", "new_tokens", "drawing", "kv_tokens"),
    [
        ([scheduled(0, 100, None)], 100, 0, 0),
        ([scheduled(64, 36, 0)], 36, 1, 100),
        ([scheduled(64, 1, 0)], 1, 1, 65),
        ([scheduled(100, 1, 1), scheduled(200, 1, 5)], 0, 2, 302),
        ([scheduled(100, 1, 1), scheduled(0, 50, None)], 50, 1, 151),
        ([scheduled(0, 40, 3)], 40, 1, 40),
    ],
    ids=["chunk", "last chunk", "last token", "decode", "mixed", "after preemption"],
)
def test_a_pass_is_its_new_tokens_and_then_a_decode_step(
    sequences: list[ScheduledSequence], new_tokens: int, drawing: int, kv_tokens: int
) -> None:
    expected = PROFILE.prefill_ms(new_tokens) if new_tokens else 0.0
    expected += float(PROFILE.decode_ms(drawing, np.float64(kv_tokens), 1000)) if drawing else 0.0
    assert pass_ms(PROFILE, StepPlan(tuple(sequences)), 1000) == pytest.approx(expected)


def test_a_profile_comes_back_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    PROFILE.write(path)
    assert make_timing(f"profile:{path}") == PROFILE


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("quadratic", "unknown timing 'quadratic': polynomial, linear:PREFILL_TOK_S,DECODE_MS or profile:FILE"),
        ("polynomial:3", "unknown timing"),
        ("profile:", "unknown timing"),
        ("linear", "two numbers above 0"),
        ("linear:1000", "two numbers above 0"),
        ("linear:0,5", "two numbers above 0"),
        ("linear:1000,inf", "two numbers above 0"),
        ("linear:a,b", "two numbers above 0"),
    ],
)
def test_other_names_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make_timing(text)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "unexpected"),
        ("[]", "one JSON object with prefill_pass_ms"),
        ('{"prefill_pass_ms": 1}', "one JSON object with"),
        (
            '{"prefill_pass_ms": 1, "prefill_token_ms": -1, "prefill_token_squared_ms": 0, "decode_step_ms": 1, '
            '"decode_sequence_ms": 0, "decode_kv_token_ms": 0}',
            "prefill_token_ms is -1; expected a number of milliseconds, 0 or more",
        ),
        (
            '{"prefill_pass_ms": 1, "prefill_token_ms": 1, "prefill_token_squared_ms": 0, "decode_step_ms": 0, '
            '"decode_sequence_ms": 0, "decode_kv_token_ms": 0}',
            "decode_step_ms is 0",
        ),
    ],
)
def test_a_profile_that_is_none_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=problem) as error:
        make_timing(f"profile:{path}")
    assert str(path) in str(error.value)
