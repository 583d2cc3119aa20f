"""How long one pass of an engine takes: the time models that a simulated engine follows."""

from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Protocol, Self, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from worker.plan import StepPlan

Floats: TypeAlias = NDArray[np.float64] | np.float64
"""For many passes at once, or for one."""


class Timing(Protocol):
    """A pass takes its prefill time, if it computes new prompt tokens, and its decode time, if any sequence gets a
    token."""

    def prefill_ms(self, new_tokens: int) -> float:
        """For all new prompt tokens of the pass together."""

    def decode_ms(self, sequences: int, kv_tokens: Floats, capacity_tokens: int) -> Floats:
        """For `sequences` that get a token, while the batch holds `kv_tokens` of a pool of `capacity_tokens`. The same
        for many passes as for each of them."""


@dataclass(frozen=True, slots=True)
class Polynomial:
    """NVIDIA Dynamo's polynomial model, fitted to a large GPU (Dynamo 1.6, lib/mocker): prefill by new tokens, decode
    by the share of the pool that is in use."""

    def prefill_ms(self, new_tokens: int) -> float:
        return 4.209989e-07 * new_tokens * new_tokens + 1.518344e-02 * new_tokens + 1.650142e01

    def decode_ms(self, sequences: int, kv_tokens: Floats, capacity_tokens: int) -> Floats:
        share: Floats = np.minimum(1.0, kv_tokens / capacity_tokens)
        took_ms: Floats = np.maximum(1.0, -25.74 * share * share + 54.01 * share + 5.74)
        return took_ms


@dataclass(frozen=True, slots=True)
class Linear:
    """A constant prefill rate, and a decode step that always takes the same."""

    prefill_tokens_per_s: float
    step_ms: float

    def prefill_ms(self, new_tokens: int) -> float:
        return new_tokens / self.prefill_tokens_per_s * 1e3

    def decode_ms(self, sequences: int, kv_tokens: Floats, capacity_tokens: int) -> Floats:
        return np.full_like(kv_tokens, self.step_ms)


@dataclass(frozen=True, slots=True)
class Profile:
    """A worker's measured times. Prefill: pass + token * t + token_squared * t^2 for t new tokens; decode: step +
    sequence * n + kv_token * k for n sequences that hold k tokens. All in milliseconds, none negative."""

    prefill_pass_ms: float
    prefill_token_ms: float
    prefill_token_squared_ms: float
    decode_step_ms: float
    decode_sequence_ms: float
    decode_kv_token_ms: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
                raise ValueError(f"{name} is {value!r}; expected a number of milliseconds, 0 or more")
        if not self.decode_step_ms:
            raise ValueError("decode_step_ms is 0; expected more, for no step takes no time")

    def prefill_ms(self, new_tokens: int) -> float:
        per_token_ms = self.prefill_token_ms + self.prefill_token_squared_ms * new_tokens
        return self.prefill_pass_ms + per_token_ms * new_tokens

    def decode_ms(self, sequences: int, kv_tokens: Floats, capacity_tokens: int) -> Floats:
        constant_ms = self.decode_step_ms + self.decode_sequence_ms * sequences
        return constant_ms + self.decode_kv_token_ms * kv_tokens

    def write(self, path: Path) -> None:
        """As one JSON object, by the names of the fields."""
        path.write_bytes(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ValueError that says what is wrong with the file, and OSError."""
        expected = [field.name for field in fields(cls)]
        try:
            values = orjson.loads(path.read_bytes())
            if not isinstance(values, dict) or sorted(values) != sorted(expected):
                raise ValueError(f"expected one JSON object with {', '.join(expected)}")
            return cls(**values)
        except ValueError as error:
            raise ValueError(f"timing profile {path}: {error}") from error


def pass_ms(timing: Timing, plan: StepPlan, capacity_tokens: int) -> float:
    """How long `plan` takes in a pool of `capacity_tokens`."""
    new_tokens = kv_tokens = 0
    for each in plan.sequences:
        tokens = len(each.token_ids)
        kv_tokens += each.start + tokens
        if tokens > 1 or each.draw is None or each.draw.index == 0:
            new_tokens += tokens
    took_ms = timing.prefill_ms(new_tokens) if new_tokens else 0.0
    if drawing := len(plan.draws):
        took_ms += float(timing.decode_ms(drawing, np.float64(kv_tokens), capacity_tokens))
    return took_ms


def make_timing(text: str) -> Timing:
    """The timing that `text` names: `polynomial`, `linear:PREFILL_TOK_S,DECODE_MS` or `profile:FILE`.

    Raises ValueError that says what is allowed, and OSError for a file that cannot be read.
    """
    name, _, arguments = text.partition(":")
    if name == "polynomial" and not arguments:
        return Polynomial()
    if name == "linear":
        return _linear(text, arguments)
    if name == "profile" and arguments:
        return Profile.read(Path(arguments))
    raise ValueError(f"unknown timing {text!r}: polynomial, linear:PREFILL_TOK_S,DECODE_MS or profile:FILE")


def _linear(text: str, arguments: str) -> Linear:
    try:
        prefill_tokens_per_s, step_ms = map(float, arguments.split(","))
    except ValueError:
        prefill_tokens_per_s, step_ms = 0.0, 0.0
    if not (isfinite(prefill_tokens_per_s) and isfinite(step_ms) and prefill_tokens_per_s > 0 and step_ms > 0):
        raise ValueError(f"timing {text!r}: expected linear:PREFILL_TOK_S,DECODE_MS, two numbers above 0")
    return Linear(prefill_tokens_per_s, step_ms)
