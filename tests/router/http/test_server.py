"""One client's connection, byte by byte."""

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest

from router.http import server
from router.http.answers import Response, json_response
from router.http.server import ClientConnection, Request
from tests.router.http.transport import FakeTransport

MAX_BODY_BYTES = 1000
GET = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
POST = b"POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def echo(request: Request) -> None:
    request.answer.send(Response(200, (), request.path.encode() + b" " + request.body))


class Source:
    paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def connect(handler: Callable[[Request], Awaitable[None]] = echo) -> FakeTransport:
    return FakeTransport(ClientConnection(handler, set(), MAX_BODY_BYTES))


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nothing would set an event
        await asyncio.sleep(0)


def without_date(sent: bytes) -> bytes:
    return re.sub(rb"date: [^\r]* GMT\r\n", b"", sent)


def ok(body: bytes, *lines: bytes) -> bytes:
    head = b"".join(line + b"\r\n" for line in (b"content-length: %d" % len(body), *lines))
    return b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + body


# Requests


async def test_a_request_and_its_answer() -> None:
    transport = connect()
    transport.feed(POST)
    await settle()
    assert re.search(rb"\r\ndate: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r\n", transport.sent)
    assert without_date(transport.taken()) == ok(b"/b hello")
    transport.feed(GET)
    await settle()
    assert without_date(transport.taken()) == ok(b"/a ")
    assert not transport.closed


async def test_bytes_one_by_one() -> None:
    transport = connect()
    for byte in POST + GET:
        transport.feed(bytes([byte]))
        await settle()
    assert without_date(transport.sent) == ok(b"/b hello") + ok(b"/a ")


async def test_pipelined_requests_are_served_one_after_the_other() -> None:
    serving = 0

    async def slow(request: Request) -> None:
        nonlocal serving
        serving += 1
        assert serving == 1
        await asyncio.sleep(0)
        await echo(request)
        serving -= 1

    transport = connect(slow)
    transport.feed(POST + GET + POST)
    await settle()
    assert without_date(transport.sent) == ok(b"/b hello") + ok(b"/a ") + ok(b"/b hello")


async def test_reading_stops_when_a_client_pipelines_too_much() -> None:
    gate = asyncio.Event()

    async def wait(request: Request) -> None:
        await gate.wait()
        await echo(request)

    transport = connect(wait)
    transport.feed(GET)
    await settle()
    ahead = 0
    while transport.reading:
        transport.feed(GET)
        ahead += 1
    assert ahead * len(GET) <= server.MAX_AHEAD_BYTES + len(GET)
    gate.set()
    await settle()
    assert not transport.reading, "the first has been answered, not what came after it"
    await until(lambda: transport.sent.count(b"200 OK") == ahead + 1)
    assert transport.reading


@pytest.mark.parametrize(
    ("line", "version", "closes"),
    [
        (b"X: y", b"1.1", False),
        (b"Connection: keep-alive", b"1.1", False),
        (b"Connection: close", b"1.1", True),
        (b"Connection: TE, Close", b"1.1", True),
        (b"Connection: Upgrade\r\nUpgrade: h2c", b"1.1", True),
        (b"X: y", b"1.0", True),
    ],
)
async def test_keeping_the_connection(line: bytes, version: bytes, closes: bool) -> None:
    transport = connect()
    transport.feed(b"GET /a HTTP/%b\r\nHost: a\r\n%b\r\n\r\n" % (version, line))
    await settle()
    assert without_date(transport.sent) == ok(b"/a ", *([b"connection: close"] if closes else []))
    assert transport.closed is closes
    assert not transport.aborted


async def test_a_client_that_waits_is_told_to_continue_once() -> None:
    transport = connect()
    transport.feed(b"POST /c HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    assert transport.taken() == CONTINUE
    transport.feed(b"he")
    assert transport.taken() == b""
    transport.feed(b"llo")
    await settle()
    assert without_date(transport.taken()) == ok(b"/c hello")


async def test_a_client_that_does_not_wait_is_not_told() -> None:
    transport = connect()
    transport.feed(b"POST /c HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello")
    await settle()
    assert without_date(transport.taken()) == ok(b"/c hello")


async def test_to_continue_waits_for_the_answer_before() -> None:
    gate = asyncio.Event()

    async def wait(request: Request) -> None:
        await gate.wait()
        await echo(request)

    transport = connect(wait)
    transport.feed(GET + b"POST /c HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
    await settle()
    assert transport.sent == b""
    gate.set()
    await settle()
    assert without_date(transport.sent) == ok(b"/a ") + CONTINUE


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"nonsense\r\n\r\n", b"400 Bad Request", b"null"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400 Bad Request", b"null"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 40_000, b"431 Request Header Fields Too Large", b"null"),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n",
            b"413 Request Entity Too Large",
            b'"payload_too_large"',
        ),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1001\r\n\r\n",
            b"413 Request Entity Too Large",
            b'"payload_too_large"',
        ),
    ],
)
async def test_a_refusal_says_why_and_lingers(
    data: bytes, status: bytes, code: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LINGER_S", 0.0)
    transport = connect()
    transport.feed(data)
    head, _, body = transport.sent.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert b"connection: close" in head
    assert b'"type":"invalid_request_error"' in body
    assert b'"code":' + code in body
    assert transport.half_closed
    assert not transport.closed
    transport.feed(b"what it still sends " * 100)
    await asyncio.sleep(0.01)
    assert transport.closed


async def test_what_came_before_nonsense_is_answered_first() -> None:
    transport = connect()
    transport.feed(GET + b"nonsense\r\n\r\n")
    await settle()
    assert without_date(transport.sent).startswith(ok(b"/a ") + b"HTTP/1.1 400 Bad Request\r\n")


# Answers


def streaming(*pieces: bytes) -> Callable[[Request], Awaitable[None]]:
    async def stream(request: Request) -> None:
        request.answer.begin(200, b"OK", [(b"x", b"y")], None)
        for piece in pieces:
            request.answer.write([piece], False)
        request.answer.write([], True)

    return stream


async def test_a_stream_is_chunked() -> None:
    transport = connect(streaming(b"one", b"twotwotwotwotwotwo"))
    transport.feed(GET + GET)
    await settle()
    head = b"HTTP/1.1 200 OK\r\nx: y\r\ntransfer-encoding: chunked\r\n\r\n"
    assert transport.sent == (head + b"3\r\none\r\n12\r\ntwotwotwotwotwotwo\r\n0\r\n\r\n") * 2


async def test_http_1_0_gets_its_stream_until_the_end_of_the_connection() -> None:
    transport = connect(streaming(b"one", b"two"))
    transport.feed(b"GET /a HTTP/1.0\r\n\r\n")
    await settle()
    assert transport.sent == b"HTTP/1.1 200 OK\r\nx: y\r\nconnection: close\r\n\r\nonetwo"
    assert transport.closed


@pytest.mark.parametrize("handler", [echo, streaming(b"one")])
async def test_head_gets_the_head_that_get_would(handler: Callable[[Request], Awaitable[None]]) -> None:
    transport = connect(handler)
    transport.feed(GET)
    await settle()
    head = transport.taken().partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
    transport.feed(b"HEAD" + GET[3:])
    await settle()
    assert without_date(transport.sent) == without_date(head)


@pytest.mark.parametrize(("status", "framing"), [(204, b""), (304, b"content-length: 2\r\n")])
async def test_statuses_without_a_body(status: int, framing: bytes) -> None:
    async def handler(request: Request) -> None:
        request.answer.begin(status, b"Whatever", [], 2)
        request.answer.write([b"ab"], True)

    transport = connect(handler)
    transport.feed(GET)
    await settle()
    assert transport.sent == b"HTTP/1.1 %d Whatever\r\n%b\r\n" % (status, framing)


async def test_a_slow_client_pauses_the_source() -> None:
    source = Source()
    gate = asyncio.Event()

    async def handler(request: Request) -> None:
        request.answer.begin(200, b"OK", [], None)
        request.answer.pull(source, 0)
        await gate.wait()
        request.answer.write([], True)

    transport = connect(handler)
    transport.protocol.pause_writing()  # of the answer before, the client has not taken all
    transport.feed(GET)
    await settle()
    assert source.paused
    transport.protocol.resume_writing()
    assert not source.paused
    transport.protocol.pause_writing()
    assert source.paused
    gate.set()
    await settle()
    source.paused = False
    transport.protocol.resume_writing()
    transport.protocol.pause_writing()
    assert not source.paused, "its answer has ended"


# Ends


async def test_a_client_that_leaves_cancels_its_handler() -> None:
    cancelled = asyncio.Event()

    async def wait(request: Request) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            request.answer.begin(200, b"OK", [], None)  # too late, and no error
            request.answer.write([b"x"], False)
            cancelled.set()
            raise

    connections: set[ClientConnection] = set()
    transport = FakeTransport(ClientConnection(wait, connections, MAX_BODY_BYTES))
    transport.feed(GET)
    await settle()
    transport.lose()
    await asyncio.wait_for(cancelled.wait(), 5)
    await settle()
    assert connections == set()


@pytest.mark.parametrize("begin", [True, False])
async def test_an_answer_that_does_not_end_breaks_off(begin: bool) -> None:
    async def handler(request: Request) -> None:
        if begin:
            request.answer.begin(200, b"OK", [], None)
            request.answer.write([b"x"], False)

    transport = connect(handler)
    transport.feed(GET)
    await settle()
    assert transport.aborted


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.0)
    gate = asyncio.Event()

    async def wait(request: Request) -> None:
        await gate.wait()
        await echo(request)

    busy = connect(wait)
    busy.feed(GET)
    idle = connect(wait)
    half = connect(wait)
    half.feed(GET[:10])
    await until(lambda: idle.closed and half.closed)
    assert not busy.closed
    gate.set()
    await settle()
    assert without_date(busy.sent) == ok(b"/a ")


async def test_draining() -> None:
    gate = asyncio.Event()

    async def wait(request: Request) -> None:
        await gate.wait()
        request.answer.send(json_response({}))

    idle, busy = connect(), connect(wait)
    busy.feed(GET + GET)
    await settle()
    for transport in (idle, busy):
        assert isinstance(transport.protocol, ClientConnection)
        transport.protocol.drain()
    assert idle.closed
    assert not busy.closed
    gate.set()
    await settle()
    assert busy.closed
    assert busy.sent.count(b"HTTP/1.1 200 OK") == 1
    assert b"connection: close" in busy.sent


# What a handler gets


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [(b"/a", "/a", ""), (b"/a?b=c&d", "/a", "b=c&d"), (b"/a%20b?", "/a%20b", ""), (b"http://h:1/a?b", "/a", "b")],
)
async def test_path_and_query(target: bytes, path: str, query: str) -> None:
    seen: list[Request] = []

    async def handler(request: Request) -> None:
        seen.append(request)
        await echo(request)

    transport = connect(handler)
    transport.feed(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target)
    await settle()
    assert (seen[0].path, seen[0].query) == (path, query)


@pytest.mark.parametrize(
    ("given", "kept"), [(b"mine-1", True), (b"a" * 129, False), (b"with space", False), (b"", False)]
)
async def test_request_ids(given: bytes, kept: bool) -> None:
    seen: list[Request] = []

    async def handler(request: Request) -> None:
        seen.append(request)
        await echo(request)

    transport = connect(handler)
    transport.feed(b"GET / HTTP/1.1\r\nHost: a\r\nX-Request-ID: %b\r\n\r\n" % given)
    await settle()
    assert seen[0].id == given.decode() if kept else re.fullmatch("[0-9a-f]{32}", seen[0].id)
