"""A trace sent to an endpoint in real time."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from replay.arrivals import LoadSpec
from replay.errors import RequestFailed
from replay.live.client import LoadClient, TimedAnswer
from replay.live.prompts import PromptOf
from replay.live.schedule import Due, Schedule
from replay.traces.trace import Trace, TraceRequest

LOOKAHEAD = 64
"""Bodies made before they are due: a prompt of 100,000 tokens takes milliseconds, which a burst does not have, and most
of a megabyte."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a request. `due_s` and `sent_s` count from the replay's beginning, as do the times of `answer`."""

    request: TraceRequest
    due_s: float
    sent_s: float
    answer: TimedAnswer | RequestFailed


class LiveRun:
    """Sends each request when it is due, whether those before are answered or not. `run` once.

    `on_ended` is called for each request that is answered or has failed.
    """

    def __init__(
        self,
        trace: Trace,
        load: LoadSpec,
        client: LoadClient,
        prompt_of: PromptOf,
        *,
        on_ended: Callable[[], object] = lambda: None,
    ) -> None:
        self._requests, self._client, self._prompt_of = trace.requests, client, prompt_of
        self._on_ended = on_ended
        self._schedule = Schedule(trace, load)
        self._bodies: dict[int, bytes] = {}  # at most LOOKAHEAD
        self._sent: list[Sent] = []  # one for each request that has ended
        self._ended = asyncio.Event()  # since the schedule was last asked
        self._began_s = 0.0

    async def run(self) -> Sequence[Sent]:
        """All requests, in the order in which they ended."""
        while self._prepare_one():
            pass
        self._began_s = self._client.clock_s()
        async with asyncio.TaskGroup() as exchanges:
            while not self._schedule.over:
                for due in self._schedule.take(self._now_s()):
                    exchanges.create_task(self._exchange(due, self._body(due.number)))
                await self._pass_time()
        return self._sent

    def _now_s(self) -> float:
        return self._client.clock_s() - self._began_s

    async def _pass_time(self) -> None:
        """Make a body ahead of its time, or else sleep until a request is due or another one has ended."""
        if self._prepare_one():
            await asyncio.sleep(0)
            return
        next_s = self._schedule.next_s
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), None if next_s is None else next_s - self._now_s())
        self._ended.clear()

    def _prepare_one(self) -> bool:
        """Whether there was a body to make."""
        for number in self._schedule.upcoming(LOOKAHEAD):
            if number not in self._bodies and len(self._bodies) < LOOKAHEAD:
                self._bodies[number] = self._make_body(number)
                return True
        return False

    def _body(self, number: int) -> bytes:
        return self._bodies.pop(number, None) or self._make_body(number)

    def _make_body(self, number: int) -> bytes:
        request = self._requests[number]
        return self._client.body(self._prompt_of(request), max(1, request.output_tokens))

    async def _exchange(self, due: Due, body: bytes) -> None:
        request = self._requests[due.number]
        sent_s = self._now_s()
        answer: TimedAnswer | RequestFailed
        try:
            answer = (await self._client.send(body, request.session)).since(self._began_s)
        except RequestFailed as error:
            answer = error
        self._sent.append(Sent(request, due.due_s, sent_s, answer))
        self._schedule.ended(due.number, self._now_s())
        self._ended.set()
        self._on_ended()
