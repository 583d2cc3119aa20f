"""The front's connections: requests in, one at a time to the handler, its answer out.

head and body are whole         the handler runs, as a task
its answer has ended            the next request, or the end of the connection
the client goes away            the handler is cancelled, also while an engine is silent
no HTTP comes, or too much      an error answer after those before it, then the end
"""

import asyncio
import logging
import random
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, cast

from protocol.errors import ApiError, HeadersTooLarge, InvalidRequest
from router.http.answers import Answer, error_response
from router.http.heads import HeadTooLarge, ProtocolError, RequestHead
from router.http.readers import RequestReader

KEEP_ALIVE_S = 75.0
"""Longer than HTTP clients keep an idle connection (httpx 5 s, aiohttp 15 s, nginx 60 s): they are to close it first,
or else a request meets a connection that this side has just given up. A head has as long to come."""
LINGER_S = 2.0
"""A client that is refused may still be sending. To close at once would reset the connection before it reads why."""
MAX_AHEAD_BYTES = 64 << 10
"""Of further requests, while one is served; then reading stops."""
BACKLOG = 1024

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")

log = logging.getLogger(__name__)


class Request(NamedTuple):
    """`id` is the client's X-Request-Id where that is fit for a header and a log, else a new one."""

    head: RequestHead
    body: bytes
    answer: Answer
    path: str
    query: str
    id: str

    @classmethod
    def of(cls, head: RequestHead, body: bytes, answer: Answer) -> "Request":
        path, _, query = head.target.decode("latin-1").partition("?")
        given = head.fields.get(b"x-request-id", b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else random.randbytes(16).hex()
        return cls(head, body, answer, path, query, request_id)


Handler = Callable[[Request], Awaitable[None]]
"""Gives `request.answer`, whatever happens. Cancelled when its client has gone or the server's time to stop is up."""


@asynccontextmanager
async def listening(
    handler: Handler, host: str, port: int, *, max_body_bytes: int, grace_s: float, reuse_port: bool = False
) -> AsyncIterator[str]:
    """Serve while the block runs; gives the base URL. On leaving, requests in flight have `grace_s` to finish.

    With `reuse_port`, other processes may listen there too. Raises OSError if the address cannot be bound.
    """
    connections: set[ClientConnection] = set()
    server = await asyncio.get_running_loop().create_server(
        lambda: ClientConnection(handler, connections, max_body_bytes),
        host,
        port,
        backlog=BACKLOG,
        reuse_port=reuse_port or None,
    )
    try:
        yield _url(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()
        await _drain(connections, grace_s)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _drain(connections: set["ClientConnection"], grace_s: float) -> None:
    tasks = [task for connection in list(connections) if (task := connection.drain()) is not None]
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=grace_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


class ClientConnection(asyncio.Protocol):
    """One client's connection. `connections` holds it while it is open."""

    def __init__(self, handler: Handler, connections: set["ClientConnection"], max_body_bytes: int) -> None:
        self._handler, self._connections = handler, connections
        self._reader = RequestReader(max_body_bytes)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._idle_check: asyncio.TimerHandle
        self._idle_since_s = self._loop.time()
        self._task: asyncio.Task[None] | None = None
        self._answer: Answer | None = None
        self._paused = self._draining = False
        self._ahead_bytes = 0
        self._continued: RequestHead | None = None
        self._refusal: ApiError | None = None

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods, not by its class
        self._connections.add(self)
        self._idle_check = self._loop.call_later(KEEP_ALIVE_S, self._check_idle)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._idle_check.cancel()
        if self._answer is not None:
            self._answer.gone = True
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        try:
            self._reader.feed(data)
        except HeadTooLarge as error:
            self._refusal = HeadersTooLarge(str(error))
        except ProtocolError as error:
            self._refusal = InvalidRequest(str(error))
        except ApiError as error:
            self._refusal = error
        if self._task is None:
            self._go_on()
        else:
            self._ahead_bytes += len(data)
            if self._ahead_bytes > MAX_AHEAD_BYTES:
                self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._paused = True
        if self._answer is not None:
            self._answer.pause()

    def resume_writing(self) -> None:
        self._paused = False
        if self._answer is not None:
            self._answer.resume()

    # What follows from it

    def _go_on(self) -> None:
        """Nothing is being served: what is next?"""
        coming = self._reader.coming
        if self._reader.complete:
            head, body = self._reader.complete.popleft()
            self._answer = Answer(self._transport, head, paused=self._paused)
            self._answer.closes |= self._draining
            self._task = self._loop.create_task(self._serve(Request.of(head, body, self._answer)))
        elif self._refusal is not None:
            self._refuse(self._refusal)
        elif coming is not None:
            self._idle_since_s = self._loop.time()  # a large body may take its time
            if coming.expects_continue and coming is not self._continued:
                self._continued = coming
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    async def _serve(self, request: Request) -> None:
        answer = request.answer
        try:
            await self._handler(request)
        finally:
            self._task = self._answer = None
            if not answer.ended:
                self._transport.abort()
        if answer.closes:
            self._transport.close()
            return
        self._idle_since_s = self._loop.time()
        if not self._reader.complete:
            self._ahead_bytes = 0
            self._transport.resume_reading()
        self._go_on()

    def _refuse(self, refusal: ApiError) -> None:
        head = RequestHead(b"", b"", (), {}, length=0, http_1_1=True, keep_alive=False, expects_continue=False)
        Answer(self._transport, head, paused=False).send(error_response(refusal))
        self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(LINGER_S, self._transport.abort)

    def _check_idle(self) -> None:
        left_s = self._idle_since_s + KEEP_ALIVE_S - self._loop.time()
        if self._task is None and left_s <= 0:
            self._transport.abort()  # what an idle client has not taken by now, it will not take
        else:
            self._idle_check = self._loop.call_later(left_s if left_s > 0 else KEEP_ALIVE_S, self._check_idle)

    def drain(self) -> asyncio.Task[None] | None:
        """Take no more requests. Returns what still runs for the last one; without any, the connection is closed."""
        self._draining = True
        if self._answer is not None:
            self._answer.closes = True
        if self._task is None:
            self._transport.close()
        return self._task
