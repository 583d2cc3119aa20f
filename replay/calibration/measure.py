"""What to ask a worker so that the times of its answers tell how long its passes take.

Prefill: the time to the first token of a single prompt, by its length. Decode: the time between tokens while a number
of sequences decode and nobody prefills, by that number and by the tokens that they hold. All prompts are drawn anew,
so that none is cached.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from replay.calibration.engine import Engine, TokenIds, TokenTimes
from replay.errors import CalibrationFailed

PREFILL_HALVINGS = 6
REPEATS = 3
"""Of which the median counts: a hiccup is none of the engine's time."""
SEQUENCES = (1, 2, 4, 8, 16, 32)
DECODE_PROMPT_PARTS = (64, 8)
"""Of the longest prompt. Two lengths, or else the sequences and the tokens that they hold would grow together."""
ANSWER_TOKENS = 64
MIN_STEPS = 8


@dataclass(frozen=True, slots=True)
class PrefillPoint:
    """A prompt of `tokens` alone had its first token after `ttft_ms`."""

    tokens: int
    ttft_ms: float


@dataclass(frozen=True, slots=True)
class DecodePoint:
    """A step of `sequences`, which held `kv_tokens` together, took `step_ms`: means over the steps that were seen."""

    sequences: int
    kv_tokens: float
    step_ms: float


@dataclass(frozen=True, slots=True)
class Plan:
    """`prefill`: lengths of single prompts. `decode`: numbers of sequences, and the length of each one's prompt."""

    prefill: tuple[int, ...]
    decode: tuple[tuple[int, int], ...]

    @property
    def requests(self) -> int:
        return 1 + REPEATS * (len(self.prefill) + sum(sequences for sequences, _ in self.decode))


def make_plan(longest_prompt: int, max_sequences: int) -> Plan:
    """`longest_prompt`: what the worker computes in one pass."""
    lengths = {max(1, longest_prompt >> halvings) for halvings in range(PREFILL_HALVINGS + 1)}
    decode = [
        (sequences, max(1, longest_prompt // part))
        for part in DECODE_PROMPT_PARTS
        for sequences in SEQUENCES
        if sequences <= max_sequences
    ]
    return Plan(tuple(sorted(lengths)), tuple(decode))


class Measurement:
    """Asks `engine` with token ids of `vocabulary`. `on_answered` is called with the number of answers that came."""

    def __init__(
        self,
        engine: Engine,
        vocabulary: range,
        rng: np.random.Generator,
        on_answered: Callable[[int], object] = lambda answers: None,
    ) -> None:
        self._engine, self._vocabulary, self._rng, self._on_answered = engine, vocabulary, rng, on_answered

    async def run(self, plan: Plan) -> tuple[list[PrefillPoint], list[DecodePoint]]:
        """Raises RequestFailed, and CalibrationFailed if no step could be told from the next."""
        await self._ask(1, plan.prefill[0], 1)  # whatever an engine does on its first request, it does now
        prefill = [await self._prefill(tokens) for tokens in plan.prefill]
        decode = [await self._decode(sequences, tokens) for sequences, tokens in plan.decode]
        seen = [point for point in decode if point is not None]
        if not seen:
            raise CalibrationFailed("the worker's tokens do not come one by one, so its steps cannot be timed")
        return prefill, seen

    async def _prefill(self, tokens: int) -> PrefillPoint:
        answers = [each for _ in range(REPEATS) for each in await self._ask(1, tokens, 1)]
        return PrefillPoint(tokens, median((each.tokens_s[0] - each.sent_s) * 1e3 for each in answers))

    async def _decode(self, sequences: int, tokens: int) -> DecodePoint | None:
        points = [decode_point(tokens, await self._ask(sequences, tokens, ANSWER_TOKENS)) for _ in range(REPEATS)]
        seen = sorted((point for point in points if point is not None), key=lambda point: point.step_ms)
        return seen[len(seen) // 2] if seen else None

    async def _ask(self, sequences: int, tokens: int, answer_tokens: int) -> list[TokenTimes]:
        prompts = [self._prompt(tokens) for _ in range(sequences)]
        answers = await self._engine.answer(prompts, answer_tokens)
        self._on_answered(len(answers))
        return answers

    def _prompt(self, tokens: int) -> TokenIds:
        return self._rng.integers(self._vocabulary.start, self._vocabulary.stop, tokens, dtype=np.uint32)


def decode_point(prompt_tokens: int, answers: Sequence[TokenTimes]) -> DecodePoint | None:
    """From the first token of the last to begin to the last token of the first to end: there all of them decode.

    None where that are less than MIN_STEPS steps: the worker did not run so many at once, or sent tokens in heaps.
    """
    last = max(answers, key=lambda answer: answer.tokens_s[0])
    began_s, ended_s = last.tokens_s[0], min(answer.tokens_s[-1] for answer in answers)
    times_s = [token_s for token_s in last.tokens_s if token_s <= ended_s]
    steps = len(times_s) - 1
    if steps < MIN_STEPS:
        return None
    step_ms = (times_s[-1] - times_s[0]) * 1e3 / steps
    generated = sum(bisect_right(answer.tokens_s, began_s) for answer in answers)  # before the first of these steps
    kv_tokens = len(answers) * (prompt_tokens + (steps - 1) / 2) + generated
    return DecodePoint(len(answers), kv_tokens, step_ms) if step_ms > 0 else None
