"""How others read the same bytes: h11, and aiohttp's parser that is written in Python (its other one is llhttp too)."""

from dataclasses import dataclass
from unittest.mock import Mock

import h11
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParserPy, HttpResponseParserPy
from aiohttp.streams import StreamReader


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader made of some bytes: messages in order, each (what the start line says, body).

    `ended`: it would read no more, for an error or because the last message ends its connection.
    """

    messages: list[tuple[bytes, bytes]]
    ended: bool


def h11_requests(data: bytes) -> Reading:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    messages: list[tuple[bytes, bytes]] = []
    start, body = b"", b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                start, body = event.method + b" " + event.target, b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                messages.append((start, body))
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE:
                    return Reading(messages, ended=True)
                connection.start_next_cycle()
            else:
                return Reading(messages, ended=event is not h11.NEED_DATA)
    except h11.ProtocolError:
        return Reading(messages, ended=True)


def h11_response(data: bytes, method: str = "POST") -> Reading:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method=method, target="/", headers=[("host", "a"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(data)
    connection.receive_data(b"")
    start, body = b"", b""
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response):
                start = b"%d" % event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return Reading([(start, body)], ended=True)
            elif not isinstance(event, h11.InformationalResponse):
                return Reading([], ended=True)
    except h11.ProtocolError:
        return Reading([], ended=True)


def aiohttp_requests(data: bytes) -> Reading:
    loop = Mock()
    parser = HttpRequestParserPy(BaseProtocol(loop), loop, auto_decompress=False)
    try:
        parsed, upgraded, _ = parser.feed_data(data)
    except HttpProcessingError:
        return Reading([], ended=True)
    messages = [
        (f"{message.method} {message.path}".encode(), _bytes(payload))
        for message, payload in parsed
        if payload.is_eof()
    ]
    closes = any(message.should_close for message, _ in parsed)
    broken = any(payload.exception() is not None for _, payload in parsed)
    return Reading(messages, ended=upgraded or closes or broken)


def aiohttp_response(data: bytes) -> Reading:
    loop = Mock()
    parser = HttpResponseParserPy(BaseProtocol(loop), loop, auto_decompress=False, read_until_eof=True)
    try:
        parsed, _, _ = parser.feed_data(data)
        parser.feed_eof()
    except Exception:  # it has several of its own
        return Reading([], ended=True)
    messages = [(b"%d" % m.code, _bytes(payload)) for m, payload in parsed if payload.is_eof() and m.code >= 200]
    return Reading(messages[:1], ended=True)


def _bytes(payload: StreamReader) -> bytes:
    return b"".join(getattr(payload, "_buffer", ()))
