"""When each request of a trace is sent."""

from collections.abc import Iterator
from dataclasses import dataclass

from replay.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """How the trace's requests come. `speedup` divides all its times.

    Open loop: at their timestamps, whatever the fleet does. `closed_loop`: a session's next turn waits for the answer
    to the one before and then as long as its user did; requests without timestamp always do. `concurrency` bounds the
    requests that are in flight: who comes then waits for his turn before he is sent, and none of his times run yet.
    """

    speedup: float = 1.0
    closed_loop: bool = False
    concurrency: int | None = None


class Arrivals:
    """Requests are told by their number in the trace; times count from the replay's beginning, in seconds."""

    def __init__(self, trace: Trace, load: LoadSpec) -> None:
        self._requests, self._load = trace.requests, load
        self._following = dict(self._follow())

    def independent(self) -> Iterator[tuple[int, float]]:
        """The requests that wait for no answer, and when they come."""
        waiting = set(self._following.values())
        for number, request in enumerate(self._requests):
            if number not in waiting:
                yield number, (request.arrival_s or 0.0) / self._load.speedup

    def after(self, number: int, answered_s: float) -> tuple[int, float] | None:
        """The request that waited for the answer to `number`, and when it comes."""
        following = self._following.get(number)
        if following is None:
            return None
        request = self._requests[following]
        if request.delay_s is not None:
            return following, answered_s + request.delay_s / self._load.speedup
        return following, max(answered_s, (request.arrival_s or 0.0) / self._load.speedup)

    def _follow(self) -> Iterator[tuple[int, int]]:
        """Each request that waits for an answer, behind the one whose answer that is."""
        previous: dict[str, int] = {}
        for number, request in enumerate(self._requests):
            if request.session is None:
                continue
            if request.session in previous and (self._load.closed_loop or request.arrival_s is None):
                yield previous[request.session], number
            previous[request.session] = number
