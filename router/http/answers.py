"""What a handler answers with: a whole response, or a body piece by piece as fast as its client takes it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Protocol

import orjson

from protocol.errors import ApiError
from router.http.heads import Header, RequestHead, bodiless, encode_head

LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer."""

    status: int
    headers: Sequence[Header]
    body: bytes


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Dataclasses, tuples and enums included."""
    more = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    return Response(status, [(b"content-type", b"application/json"), *more], orjson.dumps(body))


def error_response(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    return json_response(error.body(), error.status, {**error.headers(), **(headers or {})})


class Source(Protocol):
    """Where a body comes from, as far as its taker can slow it down."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Answer:
    """The answer to one request: `begin`, then `write` until the call that says `last`; or `send`; or `abort` any time.

    A slow client holds up the source that `pull` named. What is written without one waits in memory.
    """

    __slots__ = (
        *("_bodiless", "_chunked", "_head", "_max_tail_bytes", "_paused", "_source", "_transport", "_unsent"),
        *("begun", "closes", "ended", "extendable", "gone", "tail"),
    )

    def __init__(self, transport: asyncio.Transport, head: RequestHead, *, paused: bool) -> None:
        """`head` is the request's. `paused`: the client has not taken yet what was written before."""
        self._transport, self._head, self._paused = transport, head, paused
        self._source: Source | None = None
        self._unsent = b""
        self._chunked = self._bodiless = False
        self.begun = self.ended = False
        self.closes = not head.keep_alive
        """Whether the connection ends with this answer."""
        self.extendable = False
        """Whether the body may get longer than its source foresaw."""
        self.tail = bytearray()
        """The end of the body so far, at most twice what `pull` asked for, so that it is cut but seldom."""
        self._max_tail_bytes = 0
        self.gone = False
        """Whether the client has gone, and whoever writes is about to hear of it."""

    def send(self, response: Response) -> None:
        reason = HTTPStatus(response.status).phrase.encode()
        date = (b"date", formatdate(usegmt=True).encode())
        self.begin(response.status, reason, [*response.headers, date], len(response.body))
        self.write([response.body], True)

    def begin(self, status: int, reason: bytes, headers: Sequence[Header], length: int | None) -> None:
        """`headers` say nothing of framing or connection. `length` None: it is not known. Goes out with the first
        `write`: each is a system call."""
        self.begun = True
        self._bodiless = bodiless(self._head.method, status)
        self._chunked = length is None and self._head.http_1_1 and not self._bodiless
        self.extendable = length is None and not self._bodiless
        self.closes |= length is None and not self._head.http_1_1  # the end of the connection ends the body
        framed = [*headers]
        if length is not None and status != 204:
            framed.append((b"content-length", b"%d" % length))
        elif length is None and self._head.http_1_1 and status != 204:
            framed.append((b"transfer-encoding", b"chunked"))
        if self.closes:
            framed.append((b"connection", b"close"))
        self._unsent = encode_head(b"HTTP/1.1 %d %b" % (status, reason), framed)

    def write(self, pieces: Sequence[bytes], last: bool) -> None:
        """Every event comes here: few steps, and few functions, for most often none of it is in the CPU's cache."""
        if not self._chunked:
            data = b"" if self._bodiless else b"".join(pieces)
        elif len(pieces) == 1:
            data = b"%x\r\n%b\r\n" % (len(pieces[0]), pieces[0])
        else:
            data = b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces])
        if self._unsent:
            data, self._unsent = self._unsent + data, b""
        if last:
            data = data + LAST_CHUNK if self._chunked else data
            self.ended, self._source = True, None
        if not self.gone:
            self._transport.write(data)
        if self._max_tail_bytes:
            for piece in pieces:
                self.tail += piece
            if len(self.tail) > 2 * self._max_tail_bytes:
                del self.tail[: -self._max_tail_bytes]

    def abort(self) -> None:
        """Break off so that the client can tell: its connection ends in the middle of the answer."""
        self._transport.abort()

    def pull(self, source: Source, max_tail_bytes: int) -> None:
        self._source, self._max_tail_bytes = source, max_tail_bytes
        if self._paused:
            source.pause_reading()

    def pause(self) -> None:
        """The client is slow."""
        self._paused = True
        if self._source is not None:
            self._source.pause_reading()

    def resume(self) -> None:
        self._paused = False
        if self._source is not None:
            self._source.resume_reading()
