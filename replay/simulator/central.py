"""The queue that no placement can beat: requests wait in one line, and all workers share one cache.

A worker that has computed every prompt it took takes the next. So nobody waits while a worker could prefill, which a
router, that must decide when a request comes, cannot promise.
"""

from collections import deque
from collections.abc import Collection, Sequence

from kv_events.events import KvEvent
from replay.simulator.flight import Flight


class CentralQueue:
    """A dispatcher. Among workers without a prompt to compute, the one with the least tokens in flight is taken."""

    def __init__(self, workers: int) -> None:
        self._waiting: deque[Flight] = deque()
        self._prompts = [0] * workers  # not yet computed
        self._tokens = [0] * workers

    def place(self, flight: Flight, now: float, tried: Collection[int]) -> int | None:
        free = [worker for worker, prompts in enumerate(self._prompts) if not prompts and worker not in tried]
        if not free:
            self._waiting.append(flight)
            return None
        return self._take(flight, min(free, key=self._tokens.__getitem__))

    def pull(self, worker: int, now: float) -> Flight | None:
        if not self._waiting or self._prompts[worker]:
            return None
        flight = self._waiting.popleft()
        self._take(flight, worker)
        return flight

    def _take(self, flight: Flight, worker: int) -> int:
        self._prompts[worker] += 1
        self._tokens[worker] += flight.request.input_tokens + flight.output_tokens
        return worker

    def on_first_token(self, flight: Flight, now: float) -> None:
        self._prompts[flight.worker] -= 1

    def on_end(self, flight: Flight, now: float) -> None:
        self._tokens[flight.worker] -= flight.request.input_tokens + flight.output_tokens
        if flight.first_token_s is None:
            self._prompts[flight.worker] -= 1

    def on_events(self, worker: int, events: Sequence[KvEvent], now: float) -> None:
        """Nobody asks what is cached where."""

    def on_restart(self, worker: int) -> None:
        """Its flights end one by one."""
