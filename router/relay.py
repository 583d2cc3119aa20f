"""One request's way to a worker and back: place it, send the original bytes, pass the answer through untouched.

Before the first byte of the answer an attempt may fail and go to another worker; after it, never. Each placement ends
in exactly one `on_finish`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from protocol.errors import Unavailable, UpstreamFailed
from protocol.sse import Usage
from router.core import RouterCore
from router.discovery import describe
from router.errors import WorkerBusy, WorkerFailed, WorkerLost
from router.http.answers import Response
from router.http.heads import HOP_BY_HOP, Header, end_to_end
from router.http.server import Request
from router.http.upstream import Upstream
from router.passage import Passage
from router.records import Outcome, Placement, RouteRequest
from router.worker_link import WorkerLink

NOT_PASSED = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-request-id"}
RANK = b"x-data-parallel-rank"


@dataclass(slots=True)
class _Attempt:
    """One placement's fate so far. A handler that is cancelled leaves `outcome` as it is."""

    placement: Placement
    outcome: Outcome = Outcome.CLIENT_GONE
    usage: Usage | None = None


class Relay:
    """`links` is the app's map of workers, read only. Set `stopping` before handlers are cancelled at shutdown."""

    def __init__(
        self,
        core: RouterCore,
        links: Mapping[str, WorkerLink],
        upstream: Upstream,
        *,
        max_attempts: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core, self._links, self._upstream = core, links, upstream
        self._max_attempts, self._clock = max_attempts, clock
        self.stopping = False

    async def serve(self, request: Request, route: RouteRequest) -> Response | None:
        """A worker's answer has gone to the client; or, if all are busy, what is to go: the last one's own answer.

        Raises ApiError when no worker can be tried, or all that were tried failed.
        """
        tried: set[str] = set()
        failure: WorkerFailed | None = None
        for _ in range(self._max_attempts):
            try:
                placement = self._core.route(route, self._clock(), tried=tried)
            except Unavailable:
                if failure is None:
                    raise
                break
            try:
                await self._attempt(request, placement)
                return None
            except WorkerFailed as error:
                failure = error
                tried.add(placement.worker)
        if isinstance(failure, WorkerBusy):
            return failure.response
        raise UpstreamFailed(f"no worker answered: {failure}") from failure

    async def _attempt(self, request: Request, placement: Placement) -> None:
        attempt = _Attempt(placement)
        try:
            await self._exchange(request, attempt)
        except WorkerFailed:
            attempt.outcome = Outcome.REROUTED
            raise
        finally:
            if self.stopping and attempt.outcome is Outcome.CLIENT_GONE:
                attempt.outcome = Outcome.SHUTDOWN
            self._core.on_finish(placement.ticket, attempt.outcome, self._clock(), attempt.usage)

    async def _exchange(self, request: Request, attempt: _Attempt) -> None:
        placement = attempt.placement
        link = self._links[placement.worker]
        passage = Passage(request.answer, placement.decision, lambda: self._on_first_byte(placement))
        try:
            with link.lifeline.hold():
                await self._upstream.exchange(
                    placement.url,
                    request.head.method,
                    request.head.target,
                    _headers(request, placement),
                    request.body,
                    passage.begin,
                )
        except (WorkerLost, OSError) as error:
            link.probe_soon()
            lost = error if isinstance(error, WorkerLost) else WorkerLost(f"{placement.worker}: {describe(error)}")
            if not passage.begun:
                raise lost from error
            attempt.outcome, attempt.usage = Outcome.BROKEN, passage.usage
            passage.break_off(UpstreamFailed(f"the worker failed while it answered: {lost}"))
            return
        if passage.busy is not None:
            raise WorkerBusy(placement.worker, passage.busy)
        attempt.outcome = Outcome.OK if passage.status < 400 else Outcome.REFUSED
        attempt.usage = passage.usage

    def _on_first_byte(self, placement: Placement) -> None:
        self._core.on_first_token(placement.ticket, self._clock())


def _headers(request: Request, placement: Placement) -> list[Header]:
    replaced = [(b"x-request-id", request.id.encode())]
    if placement.rank is None:
        return end_to_end(request.head, NOT_PASSED) + replaced
    return [*end_to_end(request.head, NOT_PASSED | {RANK}), *replaced, (RANK, b"%d" % placement.rank)]
