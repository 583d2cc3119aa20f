"""The queue that no placement can beat: requests wait in one line, and all workers share one cache.

A worker that has computed every prompt it took takes the next. So nobody waits while a worker could prefill, which a
router, that must decide when a request comes, cannot promise.
"""

from collections import deque
from collections.abc import Collection, Sequence
from math import ceil

from kv_events.events import KvEvent
from replay.simulator.flight import Flight
from replay.simulator.options import FleetSpec


class CentralQueue:
    """A dispatcher. Among workers without a prompt to compute, the one with the least tokens in flight is taken.

    The pool has room for all that is in flight, to its last token: several schedulers that share one cannot make room
    by preemption, for each knows its own sequences only.
    """

    def __init__(self, spec: FleetSpec) -> None:
        self._block_size, self._free_blocks = spec.block_size, spec.workers * spec.blocks
        self._waiting: deque[Flight] = deque()
        self._prompts = [0] * spec.workers  # not yet computed
        self._tokens = [0] * spec.workers

    def place(self, flight: Flight, now: float, tried: Collection[int]) -> int | None:
        free = [worker for worker, prompts in enumerate(self._prompts) if not prompts]
        if self._waiting or not free or not self._has_room(flight):
            self._waiting.append(flight)
            return None
        worker = min(free, key=self._tokens.__getitem__)
        self._take(flight, worker)
        return worker

    def pull(self, worker: int, now: float) -> Flight | None:
        if not self._waiting or self._prompts[worker] or not self._has_room(self._waiting[0]):
            return None
        flight = self._waiting.popleft()
        self._take(flight, worker)
        return flight

    def on_first_token(self, flight: Flight, now: float) -> None:
        self._prompts[flight.worker] -= 1

    def on_end(self, flight: Flight, now: float) -> None:
        self._tokens[flight.worker] -= flight.tokens
        self._free_blocks += self._blocks(flight)
        if flight.first_token_s is None:
            self._prompts[flight.worker] -= 1

    def on_events(self, worker: int, events: Sequence[KvEvent], now: float) -> None:
        """Nobody asks what is cached where."""

    def on_restart(self, worker: int) -> None:
        """Its flights end one by one."""

    def _has_room(self, flight: Flight) -> bool:
        """True for the only one in any case: the worker says if it is too long."""
        return self._blocks(flight) <= self._free_blocks or not any(self._tokens)

    def _take(self, flight: Flight, worker: int) -> None:
        self._prompts[worker] += 1
        self._tokens[worker] += flight.tokens
        self._free_blocks -= self._blocks(flight)

    def _blocks(self, flight: Flight) -> int:
        return ceil(flight.tokens / self._block_size)
