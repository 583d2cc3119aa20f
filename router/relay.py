"""One request's way to a worker and back: place it, send the original bytes, pass the answer through untouched.

Before the first byte of the answer an attempt may fail and go to another worker; after it, never. Each placement ends
in exactly one `on_finish`.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from protocol.errors import Unavailable, UpstreamFailed
from router.core import RouterCore
from router.discovery import describe
from router.http.answers import Response
from router.http.heads import HOP_BY_HOP, Header, end_to_end
from router.http.server import Request
from router.http.upstream import Upstream
from router.passage import Passage
from router.records import Outcome, Placement, RouteRequest
from router.worker_link import WorkerLink

NOT_PASSED = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"x-request-id"}
RANK = b"x-data-parallel-rank"


class _Failure(NamedTuple):
    """Why another worker may be tried; `busy` is the worker's own answer where that was backpressure."""

    reason: str
    busy: Response | None


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
        tried: tuple[str, ...] = ()
        failure: _Failure | None = None
        for _ in range(self._max_attempts):
            try:
                placement = self._core.route(route, self._clock(), tried=tried)
            except Unavailable:
                if failure is None:
                    raise
                break
            failure = await self._attempt(request, placement)
            if failure is None:
                return None
            tried += (placement.worker,)
        assert failure is not None, "there is at least one attempt"
        if failure.busy is not None:
            return failure.busy
        raise UpstreamFailed(f"no worker answered: {failure.reason}")

    async def _attempt(self, request: Request, placement: Placement) -> _Failure | None:
        """None: the client has its answer, or as much of it as there was."""
        passage = Passage(request.answer, placement.decision, lambda: self._on_first_byte(placement))
        head, outcome, reason = request.head, Outcome.CLIENT_GONE, ""  # a handler that is cancelled leaves it so
        headers = _headers(request, placement)
        try:
            await self._upstream.exchange(placement.url, head.method, head.target, headers, request.body, passage.begin)
            outcome = passage.outcome
        except OSError as error:
            reason = f"{placement.worker}: {describe(error)}"
            self._links[placement.worker].probe_soon()
            outcome = passage.break_off(UpstreamFailed(f"the worker failed while it answered: {reason}"))
        finally:
            if self.stopping and outcome is Outcome.CLIENT_GONE:
                outcome = Outcome.SHUTDOWN
            self._core.on_finish(placement.ticket, outcome, self._clock(), passage.usage)
        if outcome is not Outcome.REROUTED:
            return None
        busy = passage.busy
        return _Failure(f"{placement.worker} answered {busy.status}" if busy else reason, busy)

    def _on_first_byte(self, placement: Placement) -> None:
        self._core.on_first_token(placement.ticket, self._clock())


def _headers(request: Request, placement: Placement) -> list[Header]:
    dropped = NOT_PASSED if placement.rank is None else NOT_PASSED | {RANK}
    headers = end_to_end(request.head, dropped)
    headers.append((b"x-request-id", request.id.encode()))
    if placement.rank is not None:
        headers.append((RANK, b"%d" % placement.rank))
    return headers
