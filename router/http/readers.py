"""Bytes to requests and answers, in any pieces, by llhttp at its strictest and by the rules in heads.

No I/O. One reader for a connection: a reader and its parser refer to each other, and a pair for every message would be
work for the garbage collector.
"""

from collections import deque
from collections.abc import Sequence
from typing import cast

import httptools

from protocol.errors import PayloadTooLarge
from router.http.heads import (
    MAX_HEAD_BYTES,
    Header,
    HeadTooLarge,
    ProtocolError,
    RequestHead,
    ResponseHead,
    bodiless,
    request_head,
    response_head,
)


class _HeadReader:
    """The half that both readers share: header lines and their bound, and what llhttp's errors mean."""

    def __init__(self) -> None:
        self._read_bytes = 0
        self.on_message_begin()

    def on_message_begin(self) -> None:
        self._start = b""  # the target of a request, the reason of an answer
        self._headers: list[Header] = []
        self._head_bytes = self._read_bytes  # at most
        self._in_head = True

    def on_url(self, part: bytes) -> None:
        self._start += part

    on_status = on_url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def _end_head(self) -> None:
        self._in_head = False
        if self._head_bytes <= MAX_HEAD_BYTES:  # with all that was read along with it: no need to count
            return
        if len(self._start) + sum(len(name) + len(value) for name, value in self._headers) > MAX_HEAD_BYTES:
            raise HeadTooLarge

    def _parse_head(self, parser: httptools.HttpRequestParser | httptools.HttpResponseParser, data: bytes) -> None:
        """Bytes with some of a head in them. Raises what llhttp raises, and HeadTooLarge."""
        self._read_bytes = len(data)
        self._head_bytes += len(data)
        parser.feed_data(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLarge


def _meaning(error: Exception) -> Exception:
    """Of an error of llhttp: what a callback raised, or ProtocolError."""
    if isinstance(error, httptools.HttpParserCallbackError):
        return cast(Exception, error.__context__)
    return ProtocolError(f"not HTTP/1.1: {error}")


class RequestReader(_HeadReader):
    """Reads the requests of one connection, pipelined or not.

    `complete` has those read, with their bodies, for the caller to take; it holds no more than one `feed` brings, if
    nothing is fed while it has any. `coming` is the head of the one whose body is on its way.
    """

    def __init__(self, max_body_bytes: int) -> None:
        super().__init__()
        self.complete: deque[tuple[RequestHead, bytes]] = deque()
        self.coming: RequestHead | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._max_body_bytes = max_body_bytes
        self._body: list[bytes] = []
        self._body_bytes = 0

    def feed(self, data: bytes) -> None:
        """Raises ProtocolError or PayloadTooLarge: feed no more then. What is complete stays so."""
        try:
            if self.coming is None:
                self._parse_head(self._parser, data)
            else:
                self._read_bytes = len(data)
                self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # an offer to go on in another protocol, not taken up; the request before it is read
        except httptools.HttpParserError as error:
            raise _meaning(error) from error

    def on_headers_complete(self) -> None:
        self._end_head()
        method, version = self._parser.get_method(), self._parser.get_http_version()
        self.coming = request_head(method, self._start, version, self._headers)
        if (self.coming.length or 0) > self._max_body_bytes:
            raise self._too_large()

    def on_body(self, piece: bytes) -> None:
        self._body.append(piece)
        self._body_bytes += len(piece)
        if self._body_bytes > self._max_body_bytes:
            raise self._too_large()

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the request body may have at most {self._max_body_bytes} bytes")

    def on_message_complete(self) -> None:
        assert self.coming is not None, "llhttp ends no message before its head"
        self.complete.append((self.coming, b"".join(self._body)))
        self.coming = None
        self._body, self._body_bytes = [], 0


class ResponseReader(_HeadReader):
    """Reads the answers on one connection, one after the other: `expect` before each.

    `head` is None until it has come; interim answers (1xx) pass unseen. `reusable` once it is `done`: whether the
    connection can take another request.
    """

    def __init__(self) -> None:
        self.done = False
        super().__init__()
        self.head: ResponseHead | None = None
        self.done = True
        self.reusable = self._bodiless = False
        self._method = b""
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)

    def expect(self, method: bytes) -> None:
        """An answer to a `method` request comes next."""
        self.head, self._method = None, method
        self.done = self.reusable = self._bodiless = False

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The bytes of the body in `data`, in order; good until the next call. Raises ProtocolError."""
        self._pieces.clear()
        try:
            if self.head is None:
                self._parse_head(self._parser, data)
            else:
                self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.done:
                raise _meaning(error) from error
            self.reusable = False  # it said more than its answer
        return () if self._bodiless else self._pieces

    def end(self) -> None:
        """The connection has ended. Raises ProtocolError if the answer has not."""
        if self.head is None:
            raise ProtocolError("the connection ended before an answer came")
        if not self.done and (self.head.chunked or self.head.length is not None):
            raise ProtocolError("the connection ended before the answer did")
        self.done = True

    def on_message_begin(self) -> None:
        if self.done:
            raise ProtocolError("an answer that nobody asked for")
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._end_head()
        status, version = self._parser.get_status_code(), self._parser.get_http_version()
        if status >= 200:
            self.head = response_head(status, self._start, version, self._headers)
            self.done = self._bodiless = bodiless(self._method, status)

    def on_message_complete(self) -> None:
        if self.head is not None:
            self.done, self.reusable = True, self.head.keep_alive
