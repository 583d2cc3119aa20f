"""What decides where a simulated request goes."""

from collections.abc import Collection, Sequence
from typing import Protocol

from kv_events.events import KvEvent
from replay.simulator.flight import Flight


class Dispatcher(Protocol):
    """Workers are told by their place, counting from 0. Times are those of the simulation, in seconds."""

    def place(self, flight: Flight, now: float, tried: Collection[int]) -> int | None:
        """The worker, none of `tried`; None: the request waits until a worker pulls it. Raises ApiError for nowhere."""

    def pull(self, worker: int, now: float) -> Flight | None:
        """The next that waits, if this worker, whose pass has just ended, may have it."""

    def on_first_token(self, flight: Flight, now: float) -> None: ...

    def on_end(self, flight: Flight, now: float) -> None:
        """The last that is heard of this placement: it was answered, or lost with its worker, or refused there."""

    def on_events(self, worker: int, events: Sequence[KvEvent], now: float) -> None: ...

    def on_restart(self, worker: int) -> None: ...
