"""Virtual time: what is to happen when."""

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush
from typing import TypeAlias

Action: TypeAlias = Callable[[float], None]


class Rank(IntEnum):
    """The order of what happens at the same moment."""

    PASS_ENDS = 0
    NEWS_COMES = 1
    WORKER_RESTARTS = 2
    REQUEST_COMES = 3


class Agenda:
    """Actions by time (seconds), rank and place (a worker or a request), then in the order in which they were noted.

    As long as what is noted: each worker, each batch of events on its way and each request that comes has one entry.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, Rank, int, int, Action]] = []
        self._noted = 0

    def at(self, time_s: float, rank: Rank, place: int, action: Action) -> None:
        """`action` is called with the time."""
        self._noted += 1
        heappush(self._entries, (time_s, rank, place, self._noted, action))

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._entries:
            time_s, _, _, _, action = heappop(self._entries)
            action(time_s)
