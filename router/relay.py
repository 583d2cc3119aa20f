"""One request's way to a worker and back: place it, send the original bytes, pass the answer through untouched.

Before the first byte of the answer an attempt may fail and go to another worker; after it, never. Each placement ends
in exactly one `on_finish`.
"""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from protocol.errors import Unavailable, UpstreamFailed
from protocol.sse import ResponsePeek, Usage, encode_event
from router.core import RouterCore
from router.discovery import describe
from router.errors import WorkerBusy, WorkerFailed, WorkerLost
from router.records import Outcome, Placement, RouteRequest
from router.worker_link import WorkerLink

# RFC 9110, 7.6.1, and what either side's HTTP library sets by itself
HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "host", "content-length", "expect"}
)
AUTO_HEADERS = ("accept", "accept-encoding", "content-type", "user-agent")
BACKPRESSURE = (429, 503)
MAX_BUSY_BYTES = 1 << 16
ENGINE_FAILURES = (aiohttp.ClientError, OSError)  # TimeoutError is an OSError


@dataclass(slots=True)
class _Attempt:
    """One placement's fate so far. A handler that is cancelled leaves `outcome` as it is."""

    placement: Placement
    outcome: Outcome
    usage: Usage | None = None


class Relay:
    """`links` is the app's map of workers, read only. Set `stopping` before handlers are cancelled at shutdown."""

    def __init__(
        self,
        core: RouterCore,
        links: Mapping[str, WorkerLink],
        session: aiohttp.ClientSession,
        *,
        max_attempts: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core, self._links, self._session = core, links, session
        self._max_attempts, self._clock = max_attempts, clock
        self.stopping = False

    async def serve(self, request: web.Request, body: bytes, route: RouteRequest) -> web.StreamResponse:
        """Raises ApiError when no worker can be tried, or all that were tried failed."""
        tried: set[str] = set()
        suspects: set[str] = set()
        failure: WorkerFailed | None = None
        for _ in range(self._max_attempts):
            try:
                placement = self._core.route(route, self._clock(), tried=tried)
            except Unavailable:
                if failure is None:
                    raise
                break
            try:
                return await self._attempt(request, body, placement)
            except WorkerFailed as error:
                failure = error
            if isinstance(failure.__cause__, aiohttp.ServerDisconnectedError) and placement.worker not in suspects:
                suspects.add(placement.worker)  # may have been a pooled connection the engine gave up: ask it again
            else:
                tried.add(placement.worker)
        return _give_up(failure)

    async def _attempt(self, request: web.Request, body: bytes, placement: Placement) -> web.StreamResponse:
        attempt = _Attempt(placement, Outcome.CLIENT_GONE)
        try:
            return await self._exchange(request, body, attempt)
        except WorkerFailed:
            attempt.outcome = Outcome.REROUTED
            raise
        finally:
            if self.stopping and attempt.outcome is Outcome.CLIENT_GONE:
                attempt.outcome = Outcome.SHUTDOWN
            self._core.on_finish(placement.ticket, attempt.outcome, self._clock(), attempt.usage)

    async def _exchange(self, request: web.Request, body: bytes, attempt: _Attempt) -> web.StreamResponse:
        link = self._links[attempt.placement.worker]
        answer: web.StreamResponse | None = None
        peek = ResponsePeek(None)
        try:
            with link.lifeline.hold():
                upstream = await self._send(request, body, attempt.placement)
                try:
                    peek = ResponsePeek(upstream.headers.get("content-type"))
                    async for chunk in _chunks(upstream):
                        answer = answer or await self._begin(request, upstream, attempt.placement)
                        peek.feed(chunk)
                        await answer.write(chunk)
                    answer = answer or await self._begin(request, upstream, attempt.placement)
                finally:
                    upstream.close()  # of an answer read to its end the connection is back in the pool already
        except WorkerLost as error:
            link.probe_soon()
            if answer is None:
                raise
            attempt.outcome, attempt.usage = Outcome.BROKEN, peek.usage
            await _break_off(request, answer, peek, error)
            return answer
        attempt.outcome = Outcome.OK if upstream.status < 400 else Outcome.REFUSED
        attempt.usage = peek.usage
        await answer.write_eof()
        return answer

    async def _send(self, request: web.Request, body: bytes, placement: Placement) -> aiohttp.ClientResponse:
        """The worker's answer, as far as its headers. Raises WorkerLost, or WorkerBusy for backpressure."""
        headers = _end_to_end(request.headers)
        headers["x-request-id"] = placement.decision.request_id
        if placement.rank is not None:
            headers["x-data-parallel-rank"] = str(placement.rank)
        try:
            upstream = await self._session.request(
                request.method,
                placement.url + request.rel_url.raw_path_qs,
                data=body or None,
                headers=headers,
                skip_auto_headers=AUTO_HEADERS,
                allow_redirects=False,
            )
            if upstream.status in BACKPRESSURE:
                async with upstream:
                    busy = await upstream.content.read(MAX_BUSY_BYTES)
                raise WorkerBusy(placement.worker, upstream.status, _end_to_end(upstream.headers), busy)
        except ENGINE_FAILURES as error:
            raise WorkerLost(f"worker {placement.worker}: {describe(error)}") from error
        return upstream

    async def _begin(
        self, request: web.Request, upstream: aiohttp.ClientResponse, placement: Placement
    ) -> web.StreamResponse:
        """The first byte came: from here on this worker's answer is the client's."""
        if upstream.status < 400:
            self._core.on_first_token(placement.ticket, self._clock())
        decision = placement.decision
        answer = web.StreamResponse(
            status=upstream.status, reason=upstream.reason, headers=_end_to_end(upstream.headers)
        )
        answer.headers["x-request-id"] = decision.request_id
        answer.headers["x-warmroute-worker"] = decision.slot
        answer.headers["x-warmroute-cached-tokens"] = str(decision.predicted_cached_tokens)
        answer.content_length = upstream.content_length
        await answer.prepare(request)
        return answer


async def _chunks(upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Body bytes as they come. Raises WorkerLost, so that a failure to read is never taken for a client that left."""
    while True:
        try:
            chunk = await upstream.content.readany()
        except ENGINE_FAILURES as error:
            raise WorkerLost(f"{upstream.url.authority}: {describe(error)}") from error
        if not chunk:
            return
        yield chunk


def _end_to_end(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Without the headers that concern one connection only, those that `Connection` names among them."""
    named = {name.strip().lower() for value in headers.getall("connection", []) for name in value.split(",")}
    dropped = HOP_BY_HOP | named
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)


async def _break_off(request: web.Request, answer: web.StreamResponse, peek: ResponsePeek, error: WorkerLost) -> None:
    """Tell the client that its answer ends here: an error event in a stream, else an unfinished body."""
    if not answer.headers.get("content-type", "").startswith("text/event-stream"):
        if request.transport is not None:
            request.transport.abort()
        return
    failed = UpstreamFailed(f"the worker failed while it answered: {error}")
    await answer.write((b"\n\n" if peek.mid_event else b"") + encode_event(orjson.dumps(failed.body())))
    answer.force_close()
    await answer.write_eof()


def _give_up(failure: WorkerFailed | None) -> web.Response:
    """All workers that could be tried failed: a busy one's own answer, else 502."""
    if isinstance(failure, WorkerBusy):
        return web.Response(status=failure.status, headers=failure.headers, body=failure.body)
    raise UpstreamFailed(f"no worker answered: {failure}") from failure
