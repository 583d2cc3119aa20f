"""Server-sent events: framing for those who write them, a reader, and a peek for those who only watch them go by.

The format is that of the HTML standard, section 9.2.6 "Interpreting an event stream"; only `data` matters here.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

MAX_EVENT_BYTES = 1 << 20
MAX_STREAM_TAIL_BYTES = 8 << 10
"""Of a stream, the event with the usage is the last one or the last but one, and has no text in it."""
MAX_JSON_TAIL_BYTES = 1 << 20
"""In a JSON answer what vLLM says of the prompt, its token ids for one, follows the usage."""

_LINE_END = re.compile(rb"\r\n|\r|\n")


def encode_event(data: bytes) -> bytes:
    """One event, ready to send. Line ends inside `data` reach its reader as LF: the format knows no other."""
    return b"data: " + _LINE_END.sub(b"\ndata: ", data) + b"\n\n"


DONE = encode_event(b"[DONE]")
"""The whole event that ends an OpenAI stream."""


class EventReader:
    """Cuts a byte stream into the data of its events, however it is chunked. Holds `max_event_bytes` of one event.

    An event over that bound is dropped and reading goes on with the next: the reader watches, it does not judge.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._line = bytearray()
        self._data: list[bytes] = []
        self._held_bytes = 0  # of the event so far, its unfinished line included
        self._in_event = False
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that this chunk completes."""
        if not self._in_event and _is_one_event(chunk) and len(chunk) <= self._max_event_bytes:
            self._after_cr = False
            return [chunk[6:-2]]
        if self._after_cr and chunk.startswith(b"\n"):  # the second half of a CRLF
            chunk = chunk[1:]
            self._after_cr = False
        events: list[bytes] = []
        for piece in chunk.splitlines(keepends=True):  # bytes split at CRLF, CR and LF only
            self._after_cr = piece.endswith(b"\r")
            self._add(piece.rstrip(b"\r\n"))
            if piece.endswith((b"\r", b"\n")):
                self._end_line(events)
        return events

    def _add(self, piece: bytes) -> None:
        if not piece:
            return
        self._in_event = True
        self._held_bytes += len(piece)
        self._line += piece
        if self._held_bytes > self._max_event_bytes:
            self._data.clear()
            del self._line[1:]  # one byte remembers that the line is not empty

    def _end_line(self, events: list[bytes]) -> None:
        if not self._line:
            self._end_event(events)
        elif self._held_bytes <= self._max_event_bytes:
            self._field(bytes(self._line))
        self._line.clear()

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif not name:  # a comment, which servers send to keep a connection alive
            self._held_bytes -= len(line)
            self._in_event = self._held_bytes > 0

    def _end_event(self, events: list[bytes]) -> None:
        if self._data:
            events.append(b"\n".join(self._data))
        self._data.clear()
        self._held_bytes = 0
        self._in_event = False


def _is_one_event(chunk: bytes) -> bool:
    """`data: ...` and its two line ends, as engines send nearly all their chunks: read in a third of the time."""
    return (
        chunk.startswith(b"data: ") and chunk.find(b"\n") == len(chunk) - 2 and chunk[-1] == 10 and b"\r" not in chunk
    )


class Usage(NamedTuple):
    """What an engine says that a request took. `cached_tokens` None: it does not say."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None


_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
"""The key and its object, which has objects of numbers in it and no deeper ones. Inside a JSON text the quotes would be
escaped, so nothing that a model says looks so."""


class ResponsePeek:
    """Watches the body of one answer pass, an event stream or a JSON object, for the usage near its end.

    Keeps the end of the body and parses nothing until it is asked: passing costs well under a microsecond an event.
    """

    def __init__(self, content_type: str | None) -> None:
        stream = (content_type or "").startswith("text/event-stream")
        self._max_tail_bytes = MAX_STREAM_TAIL_BYTES if stream else MAX_JSON_TAIL_BYTES
        self._tail = bytearray()  # at most twice its bound, so that it is cut but seldom

    def feed(self, chunk: bytes) -> None:
        self._tail += chunk
        if len(self._tail) > 2 * self._max_tail_bytes:
            del self._tail[: -self._max_tail_bytes]

    @property
    def usage(self) -> Usage | None:
        """The last usage in what has passed so far."""
        return last_usage(self._tail)


def last_usage(tail: bytes | bytearray) -> Usage | None:
    """The last usage in the end of an answer, an event stream or a JSON object."""
    at = tail.rfind(b'"usage"')
    while at >= 0:
        found = _USAGE.match(tail, at)
        if found is not None and (usage := _usage_in(found[1])) is not None:
            return usage
        at = tail.rfind(b'"usage"', 0, at)
    return None


def _usage_in(document: bytes) -> Usage | None:
    try:
        return _usage(orjson.loads(document))
    except orjson.JSONDecodeError:
        return None


def _usage(usage: Mapping[str, Any]) -> Usage | None:
    prompt_tokens = usage.get("prompt_tokens")
    if not isinstance(prompt_tokens, int):
        return None
    completion_tokens = usage.get("completion_tokens")
    details = usage.get("prompt_tokens_details")
    cached_tokens = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens if isinstance(completion_tokens, int) else 0,
        cached_tokens=cached_tokens if isinstance(cached_tokens, int) else None,
    )
