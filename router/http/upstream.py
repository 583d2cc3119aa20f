"""The workers' connections: one request at a time on each, kept for the next as long as the worker surely keeps it."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol, TypeAlias, cast
from urllib.parse import urlsplit

from router.http import answers
from router.http.heads import Header, ProtocolError, ResponseHead, encode_head
from router.http.readers import ResponseReader

CONNECT_TIMEOUT_S = 3.0
MAX_IDLE_S = 4.0
"""Below what engines keep an idle connection: vLLM's and SGLang's server gives it up after 5 s."""


Feed: TypeAlias = Callable[[Sequence[bytes], bool], None]
"""Takes the body's bytes as they come, in as many pieces as there are chunks, and whether these are the last. The last
call may have none. It may not raise."""


class Source(answers.Source, Protocol):
    """A worker's answer on its way."""

    def deliver_to(self, feed: Feed) -> None:
        """Whoever took the first pieces can name somebody else for the others."""


Begin: TypeAlias = Callable[[ResponseHead, Source], Feed]
"""Takes the head of an answer and says who takes its body. It may not raise."""


class Upstream:
    """The connections to all workers, by base URL (`http(s)://HOST[:PORT]`).

    Idle ones are bounded by how many requests ran at once. Close it when no exchange runs any more.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()  # asked for once: Python 3.11 makes a system call for it
        self._idle: dict[str, dict[_Connection, float]] = {}  # since when, oldest first
        self._busy: set[_Connection] = set()

    async def exchange(
        self, url: str, method: bytes, target: bytes, headers: Sequence[Header], body: bytes, begin: Begin
    ) -> None:
        """Send a request; returns when all of its answer has been delivered.

        Raises OSError (TimeoutError included): no connection, or the answer broke off. Cancelled, it closes the
        connection, and the worker can tell. `headers` say nothing of framing or connection.
        """
        head = _request_head(url, method, target, headers, body)
        if (kept := self._take(url)) is not None:
            try:
                await kept.exchange(method, head, body, begin)
                return
            except _GivenUp:  # idle too long for this worker after all
                pass
        await (await self._open(url)).exchange(method, head, body, begin)

    def cut_off(self, url: str, reason: str) -> None:
        """The worker is gone: what waits for its answers fails with a ConnectionError. A broken connection tells that
        itself, a worker that hangs does not."""
        for connection in [connection for connection in self._busy if connection.url == url]:
            connection.cut_off(reason)

    async def get(self, url: str, target: str, *, max_bytes: int) -> tuple[int, bytes]:
        """Status and body, cut off after `max_bytes`. Raises OSError as `exchange` does."""
        kept = _Kept(max_bytes)
        await self.exchange(url, b"GET", target.encode(), (), b"", kept.begin)
        return kept.status, bytes(kept.body)

    def close(self) -> None:
        for connections in list(self._idle.values()):
            for connection in list(connections):
                connection.close()

    # For the connections

    def begins(self, connection: "_Connection") -> "asyncio.Future[None]":
        """To be done when the exchange on this connection has ended."""
        self._busy.add(connection)
        return self._loop.create_future()

    def keep(self, connection: "_Connection") -> None:
        """The exchange has ended, and it can take another."""
        self._busy.discard(connection)
        idle, now_s = self._idle.setdefault(connection.url, {}), monotonic()
        idle[connection] = now_s
        oldest, since_s = next(iter(idle.items()))
        if now_s - since_s > MAX_IDLE_S:  # after a peak, each that comes back sees off one that nobody needed
            oldest.close()

    def forget(self, connection: "_Connection") -> None:
        self._busy.discard(connection)
        idle = self._idle.get(connection.url, {})
        idle.pop(connection, None)
        if not idle:
            self._idle.pop(connection.url, None)

    def _take(self, url: str) -> "_Connection | None":
        """The connection that was used last, unless it is too old; then all others are too."""
        idle = self._idle.get(url)
        if not idle:
            return None
        connection, since_s = idle.popitem()
        if monotonic() - since_s <= MAX_IDLE_S:
            return connection
        for old in [connection, *idle]:
            old.close()
        return None

    async def _open(self, url: str) -> "_Connection":
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self, url),
                    parts.hostname or "",
                    parts.port or (443 if tls else 80),
                    ssl=tls or None,
                )
        except TimeoutError as error:
            raise TimeoutError(f"no connection in {CONNECT_TIMEOUT_S} s") from error
        return connection


class _GivenUp(ConnectionError):
    """A connection that served before ended before any byte of this answer."""


class _Connection(asyncio.Protocol):
    """One request at a time. Its reader is done while there is none."""

    def __init__(self, upstream: Upstream, url: str) -> None:
        self.url = url
        self._upstream = upstream
        self._reader = ResponseReader()
        self._transport: asyncio.Transport
        self._begin: Begin
        self._feed: Feed | None = None  # from the head of an answer on
        self._answered: asyncio.Future[None] | None = None
        self._used = self._heard = False

    async def exchange(self, method: bytes, head: bytes, body: bytes, begin: Begin) -> None:
        if self._transport.is_closing():
            raise _GivenUp
        self._begin, self._feed, self._heard = begin, None, False
        self._reader.expect(method)
        self._answered = answered = self._upstream.begins(self)
        self._transport.writelines([head, body] if body else [head])
        try:
            await answered
        finally:
            self._used = True
            all_sent = not self._transport.get_write_buffer_size()  # else it answered without reading the request
            if self._reader.reusable and all_sent and not self._transport.is_closing():
                self._transport.resume_reading()
                self._upstream.keep(self)
            else:
                self._upstream.forget(self)
                self._transport.abort()

    def cut_off(self, reason: str) -> None:
        self._end(ConnectionError(reason))
        self._transport.abort()

    def close(self) -> None:
        self._upstream.forget(self)
        self._transport.abort()

    def deliver_to(self, feed: Feed) -> None:
        self._feed = feed

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods, not by its class

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader.done:  # nobody asked
            self.close()
            return
        try:
            pieces = reader.feed(data)
        except ProtocolError as error:
            self._end(ConnectionError(str(error)))
            return
        if self._feed is None:
            self._heard = True
            if reader.head is None:
                return
            self._feed = self._begin(reader.head, self)
        if pieces or reader.done:
            self._feed(pieces, reader.done)
        if reader.done:
            self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._answered is None or self._answered.done():  # idle, or cancelled
            return
        if error is None:
            self._answered.set_result(None)
        else:
            self._answered.set_exception(error)

    def eof_received(self) -> None:
        self._transport.abort()  # and not once the worker has taken what it has not read yet

    def connection_lost(self, exc: Exception | None) -> None:
        self._upstream.forget(self)
        if self._answered is None or self._answered.done():
            return
        if self._reader.done:
            self._end(ConnectionError("an answer could not be delivered"))  # `feed` did raise
            return
        try:
            self._reader.end()
        except ProtocolError as error:
            self._end(_GivenUp() if self._used and not self._heard else ConnectionError(str(error)))
            return
        assert self._feed is not None, "an answer that ends has begun"
        self._feed((), True)
        self._end(None)


class _Kept:
    """An answer's status and the first `max_bytes` of its body."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.status = 0
        self.body = bytearray()

    def begin(self, head: ResponseHead, source: Source) -> Feed:
        self.status = head.status
        return self.feed

    def feed(self, pieces: Sequence[bytes], last: bool) -> None:
        for piece in pieces:
            self.body += piece[: self._max_bytes - len(self.body)]


def _request_head(url: str, method: bytes, target: bytes, headers: Sequence[Header], body: bytes) -> bytes:
    framed = [(b"host", url.partition("://")[2].encode()), *headers]
    if body or method in (b"POST", b"PUT", b"PATCH"):
        framed.append((b"content-length", b"%d" % len(body)))
    return encode_head(b"%b %b HTTP/1.1" % (method, target), framed)
