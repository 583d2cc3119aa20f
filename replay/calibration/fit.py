"""From measured times to a profile: two linear models, fitted by least squares with no negative coefficient.

Residuals count in proportion to what was measured, so that a short prompt's time is met as well as a long one's. What
the way to the engine and back takes is part of the prefill pass: it cannot be told from it, and clients feel it too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from replay.calibration.measure import DecodePoint, PrefillPoint
from worker.timing import Profile

Floats: TypeAlias = NDArray[np.float64]

LEAST_STEP = 0.01
"""Of the shortest step is constant in any case: a simulation cannot have steps that take no time."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What was measured and what the profile says: `tokens` of a prompt, or held by all `sequences` that decode."""

    what: str
    sequences: int
    tokens: float
    measured_ms: float
    fitted_ms: float

    @property
    def error(self) -> float:
        """Relative to what was measured."""
        return self.fitted_ms / self.measured_ms - 1


def fit_profile(prefill: Sequence[PrefillPoint], decode: Sequence[DecodePoint]) -> Profile:
    """A prompt's first token comes after its prefill and one decode step."""
    decode_ms = np.array([point.step_ms for point in decode])
    decode_columns = np.array([(1.0, point.sequences, point.kv_tokens) for point in decode])
    least_ms = LEAST_STEP * float(decode_ms.min())
    step_ms, sequence_ms, kv_token_ms = nonnegative_fit(decode_columns, decode_ms - least_ms, 1 / decode_ms)
    step_ms += least_ms

    ttft_ms = np.array([point.ttft_ms for point in prefill])
    tokens = np.array([float(point.tokens) for point in prefill])
    prefill_ms = ttft_ms - (step_ms + sequence_ms + kv_token_ms * tokens)
    prefill_columns = np.stack([np.ones_like(tokens), tokens, tokens**2], axis=1)
    pass_ms, token_ms, token_squared_ms = nonnegative_fit(prefill_columns, prefill_ms, 1 / ttft_ms)
    return Profile(pass_ms, token_ms, token_squared_ms, step_ms, sequence_ms, kv_token_ms)


def nonnegative_fit(columns: Floats, values: Floats, weights: Floats) -> list[float]:
    """The x >= 0 that makes the sum of (weights * (columns @ x - values))**2 least.

    `columns` [points, coefficients], the others [points]. Where some coefficients of that x are 0, the others are
    those of the free least squares over their columns alone: so with few columns all their subsets are tried.
    """
    scale = columns.max(axis=0)
    weighted, target = columns / scale * weights[:, np.newaxis], values * weights
    candidates = _candidates(weighted, target)
    best = min(candidates, key=lambda x: float(np.square(weighted @ x - target).sum()))
    return [float(each) for each in best / scale]


def _candidates(columns: Floats, values: Floats) -> Iterator[Floats]:
    """The free least squares over each subset of the columns, where none of it is negative; none of them is one."""
    count = columns.shape[1]
    for size in range(count + 1):
        for chosen in combinations(range(count), size):
            x = np.zeros(count)
            x[list(chosen)] = np.linalg.lstsq(columns[:, chosen], values, rcond=None)[0]
            if (x >= 0).all():
                yield x


def residuals(profile: Profile, prefill: Sequence[PrefillPoint], decode: Sequence[DecodePoint]) -> list[Fitted]:
    """Each point beside what the profile says to it."""

    def decode_ms(sequences: int, kv_tokens: float) -> float:
        return float(profile.decode_ms(sequences, np.float64(kv_tokens), capacity_tokens=1))

    fitted = []
    for first in prefill:
        fitted_ms = profile.prefill_ms(first.tokens) + decode_ms(1, first.tokens)
        fitted.append(Fitted("first token", 1, first.tokens, first.ttft_ms, fitted_ms))
    for step in decode:
        fitted_ms = decode_ms(step.sequences, step.kv_tokens)
        fitted.append(Fitted("decode step", step.sequences, step.kv_tokens, step.step_ms, fitted_ms))
    return fitted
