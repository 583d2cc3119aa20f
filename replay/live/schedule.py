"""Which of a trace's requests is to be sent when. It knows no clock and sends nothing."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass

from replay.arrivals import Arrivals, LoadSpec
from replay.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Due:
    """Request `number` of the trace, which should be sent at `due_s`."""

    number: int
    due_s: float


class Schedule:
    """Has an entry for each request that is known to come, so at most as many as the trace.

    Times count from the replay's beginning. Of each request that `take` gives, `ended` must be told.
    """

    def __init__(self, trace: Trace, load: LoadSpec) -> None:
        self._arrivals = Arrivals(trace, load)
        self._coming = sorted((-at_s, -number) for number, at_s in self._arrivals.independent())  # the next one last
        self._concurrency = load.concurrency or len(trace.requests)
        self._in_flight = 0
        self._freed_s = 0.0  # when an answer last made room where there was none

    @property
    def over(self) -> bool:
        return not self._coming and not self._in_flight

    @property
    def next_s(self) -> float | None:
        """When the next one is due; None if that depends on an answer."""
        return -self._coming[-1][0] if self._coming and self._in_flight < self._concurrency else None

    def upcoming(self, count: int) -> list[int]:
        """The numbers of the next ones, as far as they are known."""
        return [-number for _, number in self._coming[-count:]]

    def take(self, now_s: float) -> Iterator[Due]:
        """All that are to be sent now."""
        while self.next_s is not None and self.next_s <= now_s:
            at_s, number = self._coming.pop()
            self._in_flight += 1
            yield Due(-number, max(-at_s, self._freed_s))

    def ended(self, number: int, now_s: float) -> None:
        if self._in_flight == self._concurrency:
            self._freed_s = now_s
        self._in_flight -= 1
        following = self._arrivals.after(number, now_s)
        if following is not None:
            insort(self._coming, (-following[1], -following[0]))
