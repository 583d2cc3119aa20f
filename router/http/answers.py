"""What a handler answers with: a whole response, or a body piece by piece as fast as its client takes it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from enum import Enum, auto
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


class _Framing(Enum):
    """How a client learns where the body ends."""

    LENGTH = auto()
    CHUNKS = auto()
    CLOSE = auto()  # HTTP/1.0 knows no chunks
    BODILESS = auto()


class Answer:
    """The answer to one request: `begin`, then `write` until the call that says `last`; or `send`; or `abort` any time.

    A slow client holds up the source that `pull` named. What is written without one waits in memory.
    """

    __slots__ = ("_framing", "_head", "_paused", "_source", "_transport", "_unsent", "begun", "closes", "ended")

    def __init__(self, transport: asyncio.Transport, head: RequestHead, *, paused: bool) -> None:
        """`head` is the request's. `paused`: the client has not taken yet what was written before."""
        self._transport, self._head, self._paused = transport, head, paused
        self._framing = _Framing.BODILESS
        self._unsent = b""
        self._source: Source | None = None
        self.begun = self.ended = False
        self.closes = not head.keep_alive
        """Whether the connection ends with this answer."""

    def send(self, response: Response) -> None:
        reason = HTTPStatus(response.status).phrase.encode()
        date = (b"date", formatdate(usegmt=True).encode())
        self.begin(response.status, reason, [*response.headers, date], len(response.body))
        self.write([response.body], last=True)

    def begin(self, status: int, reason: bytes, headers: Sequence[Header], length: int | None) -> None:
        """`headers` say nothing of framing or connection. `length` None: it is not known. Goes out with the first
        `write`: each is a system call."""
        self.begun = True
        framed = [*headers, *self._choose_framing(status, length)]
        if self.closes:
            framed.append((b"connection", b"close"))
        self._unsent = encode_head(b"HTTP/1.1 %d %b" % (status, reason), framed)

    def _choose_framing(self, status: int, length: int | None) -> list[Header]:
        if length is not None:
            self._framing = _Framing.LENGTH
            framing = [(b"content-length", b"%d" % length)]
        elif self._head.http_1_1:
            self._framing = _Framing.CHUNKS
            framing = [(b"transfer-encoding", b"chunked")]
        else:
            self._framing = _Framing.CLOSE
            self.closes, framing = True, []
        if not bodiless(self._head.method, status):
            return framing
        self._framing = _Framing.BODILESS
        return [] if status == 204 else framing

    @property
    def extendable(self) -> bool:
        """Whether the body may be longer than its source foresaw."""
        return self._framing in (_Framing.CHUNKS, _Framing.CLOSE)

    def write(self, pieces: Sequence[bytes], *, last: bool) -> None:
        if self._framing is _Framing.CHUNKS:
            pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
            if last:
                pieces.append(LAST_CHUNK)
        elif self._framing is _Framing.BODILESS:
            pieces = ()
        if not self._transport.is_closing():  # else the client has gone, and whoever writes is about to hear of it
            self._transport.write(b"".join([self._unsent, *pieces]))
        self._unsent = b""
        if last:
            self.ended, self._source = True, None

    def abort(self) -> None:
        """Break off so that the client can tell: its connection ends in the middle of the answer."""
        self._transport.abort()

    def pull(self, source: Source) -> None:
        self._source = source
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
