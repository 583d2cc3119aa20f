"""The front of one process among several: what tells of the fleet, or changes it, does so for all of them.

GET  /workers, /decisions, /ready     one answer, merged; `unanswered_processes` says whose part is missing
GET  /metrics                         everybody's samples, with a label `process`
POST /workers, DELETE /workers/{id}   by way of the supervisor, which tells all

Placements, models, trees and `POST /route` come from the process that was asked.
"""

import time
from collections.abc import Iterable
from typing import Any

from protocol.errors import Conflict, NotFound, Unavailable
from router.app import Parts
from router.fleet import worker_id
from router.gateway import Gateway, decisions_asked_for, readiness, scrape, worker_spec
from router.http.answers import Response, json_response
from router.http.server import Request
from router.json_answers import decision_json, worker_json
from router.processes.commons import Commons, Replies, Sight
from router.processes.merging import JointScrape, merged_decisions, merged_workers
from router.processes.questions import ANSWER_TIMEOUT_S, ask
from router.records import WorkerReport

CHANGE_TIMEOUT_S = 2 * ANSWER_TIMEOUT_S
"""The supervisor answers when all processes have, or have been waited for."""


class JointGateway(Gateway):
    def __init__(self, parts: Parts, commons: Commons, *, max_decisions: int) -> None:
        """`max_decisions` is what each process remembers: of more, some would be missing between the others."""
        super().__init__(*parts)
        self._commons, self._max_decisions = commons, max_decisions

    async def ready(self, request: Request) -> Response:
        sights = await self._sights()
        problems = {model: why for sight in sights.by_process.values() for model, why in sight.problems.items()}
        return readiness(_workers(sights), problems)

    async def metrics(self, request: Request) -> Response:
        scrapes = await self._commons.ask_all("scrape")
        return scrape(JointScrape(scrapes.by_process, scrapes.unanswered))

    async def list_workers(self, request: Request) -> Response:
        sights = await self._sights()
        return _joint_json({"workers": [worker_json(report) for report in _workers(sights)]}, sights.unanswered)

    async def add_worker(self, request: Request) -> Response:
        spec = worker_spec(request)
        worker = worker_id(spec.url)
        if _find(worker, await self._sights()):
            raise Conflict(f"worker {worker!r} is here already, or still leaving", param="url")
        unanswered = await self._change("add", spec)
        if (report := _find(worker, await self._sights())) is None:
            raise Conflict(f"worker {worker!r} was removed again", param="url")
        return _joint_json(worker_json(report), unanswered, 201)

    async def remove_worker(self, request: Request, id: str) -> Response:
        """202 and the requests that all processes have there, or 200 when it is gone already."""
        unanswered: tuple[int, ...] = ()
        try:
            unanswered = await self._change("remove", id)
        except NotFound:
            if _find(id, await self._sights()) is None:  # else it is still leaving
                raise
        sights = await self._sights()
        report = _find(id, sights)
        in_flight = sum(slot.active_requests for slot in report.slots) if report else 0
        left = {"worker": id, "in_flight": in_flight}
        return _joint_json(left, {*unanswered, *sights.unanswered}, 202 if in_flight else 200)

    async def decisions(self, request: Request) -> Response:
        last = min(decisions_asked_for(request), self._max_decisions)
        logs = await self._commons.ask_all("decisions", last)
        now = time.monotonic()
        merged = merged_decisions(logs.by_process.values(), last)
        lines = [decision_json(decision, finish, now) for decision, finish in merged]
        return _joint_json({"decisions": lines}, logs.unanswered)

    async def _sights(self) -> Replies[Sight]:
        return await self._commons.ask_all("sight")

    async def _change(self, what: str, argument: object) -> tuple[int, ...]:
        """Returns the numbers of processes that have not confirmed it."""
        try:
            unanswered: tuple[int, ...] = await ask(
                self._commons.supervisor, what, argument, timeout_s=CHANGE_TIMEOUT_S
            )
            return unanswered
        except OSError as error:
            raise Unavailable("the router's supervisor did not answer; GET /workers tells what is") from error


def _workers(sights: Replies[Sight]) -> list[WorkerReport]:
    return merged_workers({process: sight.workers for process, sight in sights.by_process.items()})


def _find(worker: str, sights: Replies[Sight]) -> WorkerReport | None:
    return next((report for report in _workers(sights) if report.id == worker), None)


def _joint_json(body: dict[str, Any], unanswered: Iterable[int], status: int = 200) -> Response:
    return json_response(body | {"unanswered_processes": sorted(unanswered)}, status)
