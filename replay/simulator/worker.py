"""A worker in virtual time: the real engine, scheduler and block manager over a runner that only keeps time.

It computes pass after pass as long as it has work. A stretch of passes that only decode is done at once when it ends,
or when a request comes: then it ends with the pass that is under way. Step by step, each pass of a stretch is the
engine's own; both ways give the same. What a stretch did to the cache is published at its end.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kv_events.events import KvEvent
from replay.simulator.agenda import Agenda, Rank
from replay.simulator.options import FleetSpec
from replay.simulator.prompts import VOCABULARY, digest_blocks
from worker.block_manager import BlockManager
from worker.engine import Engine
from worker.plan import ModelSpec, SampledToken, StepPlan
from worker.request import EngineRequest, SamplingParams, TokenOutput
from worker.scheduler import Scheduler
from worker.timing import pass_ms

UNLIMITED = 1 << 62
"""The context of a simulated model: the pool is the only limit."""

Times: TypeAlias = NDArray[np.float64]
NO_ENDS: Times = np.empty(0)
Publish: TypeAlias = Callable[[Sequence[KvEvent], float], None]
OnOutputs: TypeAlias = Callable[[int, Sequence[TokenOutput], float], None]


class TimedRunner:
    """Says how long each pass takes, and draws a request's seed as its every token."""

    model = ModelSpec(VOCABULARY, UNLIMITED, frozenset())

    def __init__(self, spec: FleetSpec) -> None:
        self._timing, self._capacity_tokens = spec.timing, spec.worker_tokens
        self.took_s = 0.0

    def run(self, plan: StepPlan) -> list[SampledToken]:
        self.took_s = pass_ms(self._timing, plan, self._capacity_tokens) / 1e3
        return [SampledToken(seed_of(draw.params)) for draw in plan.draws]

    def decode_ends(self, now: float, passes: int, kv_tokens: Sequence[int]) -> Times:
        """When each of `passes` ends in which sequences of so many tokens decode: the same times as pass by pass."""
        sequences, first = len(kv_tokens), sum(kv_tokens) + len(kv_tokens)
        growing = np.arange(first, first + passes * sequences, sequences, dtype=np.float64)
        took_ms = self._timing.decode_ms(sequences, growing, self._capacity_tokens)
        times = np.empty(passes + 1)
        times[0], times[1:] = now, took_ms / 1e3
        return np.add.accumulate(times)[1:]


def seed_of(params: SamplingParams) -> int:
    assert params.seed is not None, "the engine gives every request a seed"
    return params.seed


class _Outbox:
    """The engine's publisher: keeps what it says until the pass ends in which that happens."""

    def __init__(self) -> None:
        self._events: list[KvEvent] = []

    def publish(self, events: Sequence[KvEvent]) -> None:
        self._events += events

    def take(self) -> list[KvEvent]:
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        pass

    def describe(self) -> dict[str, object]:
        return {"publisher": "simulated"}


class SimulatedWorker:
    """`on_outputs` hears of a pass's tokens when it ends, though of a stretch only what ended with it."""

    def __init__(
        self,
        place: int,
        spec: FleetSpec,
        agenda: Agenda,
        *,
        make_blocks: Callable[[], BlockManager],
        publish: Publish,
        on_outputs: OnOutputs,
        step_by_step: bool,
    ) -> None:
        self.place = place
        self._spec, self._agenda, self._make_blocks = spec, agenda, make_blocks
        self._publish, self._on_outputs, self._step_by_step = publish, on_outputs, step_by_step
        self._alarm = 0  # the only entry in the agenda that counts
        self.restart()

    def restart(self) -> None:
        """Begin with an empty cache and nothing to do. What was under way is lost, without a word."""
        self._alarm += 1
        self._outbox, self._runner = _Outbox(), TimedRunner(self._spec)
        scheduler = Scheduler(
            self._make_blocks(),
            max_batched_tokens=self._spec.max_batched_tokens,
            max_num_seqs=self._spec.max_num_seqs,
            digest_blocks=digest_blocks,
        )
        self._engine = Engine(self._runner, scheduler, self._outbox, Random(self.place))
        self._idle = True
        self._ends = NO_ENDS  # of the passes under way
        self._left = 0  # passes of this stretch that have not ended
        self._outputs: list[TokenOutput] | None = None  # of the pass under way; None: a stretch that is done at its end

    def add(self, request: EngineRequest, now: float) -> None:
        """Raises worker.engine.BadPrompt."""
        self._engine.add(request)
        if self._idle:
            self._begin(now)
        elif len(self._ends):
            self._left = int(np.searchsorted(self._ends, now, side="right")) + 1
            self._shorten()

    def _shorten(self) -> None:
        """End the stretch with the passes that are left."""
        if self._left < len(self._ends):
            self._ends = self._ends[: self._left]
            self._wake_at_end()

    def _begin(self, now: float) -> None:
        self._idle = not self._engine.has_work
        if self._idle:
            return
        steady = self._engine.steady_steps()
        self._left = max(1, steady)
        self._compute(now, at_once=steady > 0 and not self._step_by_step)

    def _compute(self, now: float, *, at_once: bool) -> None:
        if at_once:
            self._outputs = None
            self._ends = self._runner.decode_ends(now, self._left, self._engine.running_tokens)
        else:
            self._outputs = self._engine.step()
            self._ends = np.array([now + self._runner.took_s])
        self._wake_at_end()

    def _wake_at_end(self) -> None:
        self._alarm += 1
        alarm = self._alarm
        self._agenda.at(float(self._ends[-1]), Rank.PASS_ENDS, self.place, lambda now: self._wake(alarm, now))

    def _wake(self, alarm: int, now: float) -> None:
        if alarm != self._alarm:
            return
        passes, self._ends = len(self._ends), NO_ENDS
        self._left -= passes
        outputs = self._outputs
        if outputs is None:
            outputs = self._engine.advance(passes, lambda request: seed_of(request.sampling))
        if not self._left:
            self._publish(self._outbox.take(), now)
        self._on_outputs(self.place, outputs, now)
        if self._left:
            self._compute(now, at_once=False)
        else:
            self._begin(now)
