"""The contract between scheduler and runner: what one step computes, and what comes back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from worker.request import SamplingParams


@dataclass(frozen=True, slots=True)
class Draw:
    """How to pick a token. `index` counts the tokens that the request has generated so far.

    Seed and index fix the draw, so it depends neither on the rest of the batch nor on preemption.
    """

    params: SamplingParams
    index: int


class ScheduledSequence(NamedTuple):
    """The tokens of one sequence to compute now, the first at position `start`.

    `block_table` covers them and all before: position p lives in slot `block_table[p // block_size] * block_size +
    p % block_size`. `draw` is None while more of the prompt follows in a later step.
    """

    request_id: str
    token_ids: Sequence[int]
    start: int
    block_table: tuple[int, ...]
    draw: Draw | None

    @property
    def positions(self) -> range:
        """Where in the sequence the tokens stand."""
        return range(self.start, self.start + len(self.token_ids))


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One pass through the model. A sequence may read blocks that another one fills in the same step."""

    sequences: tuple[ScheduledSequence, ...]

    @property
    def num_tokens(self) -> int:
        return sum(len(sequence.token_ids) for sequence in self.sequences)

    @property
    def drawing(self) -> list[ScheduledSequence]:
        """The sequences that get a token from this step, in order."""
        return [sequence for sequence in self.sequences if sequence.draw is not None]

    @property
    def draws(self) -> list[Draw]:
        """The draws of `drawing`."""
        return [sequence.draw for sequence in self.sequences if sequence.draw is not None]


class SampledToken(NamedTuple):
    """A token; its log-probability and the best alternatives (best first) if the request asked for them."""

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the engine must know of a model. `max_model_len` counts prompt and generated tokens together."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]


class Runner(Protocol):
    """Computes steps over a paged KV pool that it owns."""

    @property
    def model(self) -> ModelSpec: ...

    def run(self, plan: StepPlan) -> list[SampledToken]:
        """Compute all tokens of the plan; one token for each of `plan.drawing`, in that order. May raise anything."""


class PooledRunner(Runner, Protocol):
    """Knows its pool: the block numbers of its plans are 0 to `num_blocks` - 1."""

    @property
    def num_blocks(self) -> int: ...

    @property
    def block_size(self) -> int: ...
