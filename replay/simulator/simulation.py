"""The event loop: requests come, workers compute, tokens go out, all in virtual time."""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial

from protocol.errors import ApiError
from replay.arrivals import Arrivals, LoadSpec
from replay.simulator.agenda import Agenda, Rank
from replay.simulator.dispatcher import Dispatcher
from replay.simulator.flight import Flight
from replay.simulator.options import FleetSpec, Restart
from replay.simulator.prompts import prompt_tokens
from replay.simulator.worker import SimulatedWorker
from replay.traces.trace import Trace
from worker.block_manager import BlockManager
from worker.engine import BadPrompt
from worker.request import TokenOutput


class Simulation:
    """Owns what is under way. `run` once; `on_ended` is called for each request that is answered or rejected."""

    def __init__(
        self,
        trace: Trace,
        spec: FleetSpec,
        load: LoadSpec,
        dispatcher: Dispatcher,
        agenda: Agenda,
        *,
        make_blocks: Callable[[], BlockManager],
        restarts: Sequence[Restart],
        step_by_step: bool,
        on_ended: Callable[[], object],
    ) -> None:
        self._trace, self._dispatcher, self._agenda, self._on_ended = trace, dispatcher, agenda, on_ended
        self._arrivals = Arrivals(trace, load)
        self._concurrency = load.concurrency or len(trace.requests)
        self._flights: dict[str, Flight] = {}  # under way
        self._unsent: deque[int] = deque()  # came while too many were under way
        self._ended: list[Flight] = []
        self._restarts = restarts
        self._workers = [
            SimulatedWorker(
                place,
                spec,
                agenda,
                make_blocks=make_blocks,
                publish=partial(dispatcher.on_events, place),
                on_outputs=self._on_outputs,
                step_by_step=step_by_step,
            )
            for place in range(spec.workers)
        ]

    def run(self) -> list[Flight]:
        """All requests, in the order of the trace."""
        for number, at_s in self._arrivals.independent():
            self._expect(number, at_s)
        for restart in self._restarts:
            action = partial(self._restart, restart.worker)
            self._agenda.at(restart.at_s, Rank.WORKER_RESTARTS, restart.worker, action)
        self._agenda.run()
        assert len(self._ended) == len(self._trace.requests), "a request was forgotten"
        return sorted(self._ended, key=lambda flight: flight.number)

    # Requests

    def _expect(self, number: int, at_s: float) -> None:
        self._agenda.at(at_s, Rank.REQUEST_COMES, number, partial(self._come, number))

    def _come(self, number: int, now: float) -> None:
        if len(self._flights) >= self._concurrency:
            self._unsent.append(number)
            return
        request = self._trace.requests[number]
        flight = Flight(number, request, now, prompt_tokens(request, self._trace.block_tokens))
        self._flights[flight.id] = flight
        self._dispatch(flight, now)

    def _dispatch(self, flight: Flight, now: float, tried: Collection[int] = ()) -> None:
        try:
            worker = self._dispatcher.place(flight, now, tried)
        except ApiError as error:
            self._reject(flight, str(error), now)
        else:
            if worker is not None:
                self._start(flight, worker, now)

    def _start(self, flight: Flight, worker: int, now: float) -> None:
        flight.worker = worker
        try:
            self._workers[worker].add(flight.for_engine(), now)
        except BadPrompt as error:
            self._dispatcher.on_end(flight, now)
            self._reject(flight, str(error), now)

    def _reject(self, flight: Flight, reason: str, now: float) -> None:
        flight.rejection = reason
        self._forget(flight, now)

    def _forget(self, flight: Flight, now: float) -> None:
        """It is over: whoever waited for that may come."""
        flight.prompt = None
        self._ended.append(self._flights.pop(flight.id))
        self._on_ended()
        following = self._arrivals.after(flight.number, now)
        if following is not None:
            self._expect(*following)
        if self._unsent:
            self._expect(self._unsent.popleft(), now)

    # Workers

    def _on_outputs(self, worker: int, outputs: Sequence[TokenOutput], now: float) -> None:
        for output in outputs:
            flight = self._flights[output.request_id]
            if flight.first_token_s is None:
                flight.first_token_s, flight.cached_tokens = now, output.cached_tokens
                self._dispatcher.on_first_token(flight, now)
            if output.finish_reason is not None:
                flight.ended_s = now
                self._dispatcher.on_end(flight, now)
                self._forget(flight, now)
        waiting = self._dispatcher.pull(worker, now)
        if waiting is not None:
            self._start(waiting, worker, now)

    def _restart(self, worker: int, now: float) -> None:
        """What was under way there is sent again, to another worker if there is one."""
        self._workers[worker].restart()
        self._dispatcher.on_restart(worker)
        tried = [worker] if len(self._workers) > 1 else []
        for flight in [flight for flight in self._flights.values() if flight.worker == worker]:
            self._dispatcher.on_end(flight, now)
            flight.first_token_s, flight.worker = None, -1
            self._dispatch(flight, now, tried)
