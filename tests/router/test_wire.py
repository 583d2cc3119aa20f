"""The relay's bytes, from a raw socket to an engine and back."""

import asyncio
import gzip
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from tests.router.conftest import MakeFleet
from tests.router.engine import Engine, begin_stream, chunk
from tests.router.fleet import Fleet, chat, until

BODY = json.dumps(chat()).encode()


class Raw:
    """A client that says exactly what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self, method: str = "POST") -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body), its framing checked byte by byte."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head[1:-2])
        status = int(head[0].split(" ")[1])
        assert ("content-length" in headers) + ("transfer-encoding" in headers) == 1
        if method == "HEAD":
            return status, headers, b""
        if "content-length" in headers:
            return status, headers, await self.reader.readexactly(int(headers["content-length"]))
        return status, headers, b"".join([piece async for piece in self.chunks()])

    async def chunks(self) -> AsyncIterator[bytes]:
        while size := int((await self.reader.readuntil(b"\r\n"))[:-2], 16):
            yield await self.reader.readexactly(size)
            assert await self.reader.readexactly(2) == b"\r\n"
        assert await self.reader.readexactly(2) == b"\r\n"


@asynccontextmanager
async def raw(fleet: Fleet) -> AsyncIterator[Raw]:
    port = urlsplit(fleet.router.url).port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(60):
            yield Raw(reader, writer)
    finally:
        writer.close()


def head(*lines: str, method: str = "POST", path: str = "/v1/chat/completions") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: router", *lines, "", ""]).encode()


async def received(engine: Engine, place: int = 0) -> tuple[web.Request, bytes]:
    request, _ = engine.received[place]
    return request, await request.read()


async def test_a_chunked_request_reaches_the_engine_whole(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)
    async with raw(fleet) as client:
        client.send(head("Transfer-Encoding: chunked"))
        for place in range(0, len(BODY), 100):
            piece = BODY[place : place + 100]
            client.send(b"%x;ext=1\r\n%b\r\n" % (len(piece), piece))
        client.send(b"0\r\nTrailer: x\r\n\r\n")
        status, _, _ = await client.answer()
    request, body = await received(fleet.engines[0])
    assert (status, body) == (200, BODY)
    assert request.headers["content-length"] == str(len(BODY))
    assert "transfer-encoding" not in request.headers


async def test_a_client_that_expects_100_gets_it_and_the_engine_never_hears_of_it(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)
    async with raw(fleet) as client:
        client.send(head("Expect: 100-continue", f"Content-Length: {len(BODY)}"))
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(BODY)
        assert (await client.answer())[0] == 200
    request, body = await received(fleet.engines[0])
    assert "expect" not in request.headers
    assert body == BODY


async def test_headers_of_one_connection_stay_there(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)
    async with raw(fleet) as client:
        client.send(
            head(
                "Connection: keep-alive, X-Mine",
                "X-Mine: 1",
                "X-Yours: 2",
                "TE: trailers",
                f"Content-Length: {len(BODY)}",
            )
        )
        client.send(BODY)
        await client.answer()
    request, _ = await received(fleet.engines[0])
    assert request.headers["x-yours"] == "2"
    assert request.headers["host"] == fleet.engines[0].id
    assert not {"x-mine", "te", "connection"} & {name.lower() for name in request.headers}


async def test_pipelined_requests_and_a_connection_that_stays(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(2, policy="round_robin")
    texts = [f"{i}?" for i in range(6)]

    async def repeat(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"asked": body["messages"][-1]["content"]})

    for engine in fleet.engines:
        engine.script = repeat
    async with raw(fleet) as client:
        for text in texts:
            body = json.dumps(chat(text)).encode()
            client.send(head(f"Content-Length: {len(body)}") + body)
        client.send(head(method="GET", path="/health"))
        assert [json.loads((await client.answer())[2])["asked"] for _ in texts] == texts
        assert json.loads((await client.answer())[2]) == {"status": "ok"}


async def test_head_is_passed_on_and_has_no_body(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)

    async def answer_head(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert request.method == "HEAD"
        return web.Response(body=b"seven b", headers={"x-engine": "here"})

    fleet.engines[0].script = answer_head
    async with raw(fleet) as client:
        for _ in range(2):
            client.send(head(method="HEAD", path="/v1/things"))
            status, headers, _ = await client.answer("HEAD")
            assert (status, headers["content-length"], headers["x-engine"]) == (200, "7", "here")
        client.send(head(method="HEAD", path="/health"))
        assert (await client.answer("HEAD"))[0] == 200


@pytest.mark.parametrize(
    "attack",
    [
        head("Content-Length: 6", "Transfer-Encoding: chunked") + b"0\r\n\r\nX",
        head("Content-Length: 0", "Content-Length: 44") + head(method="GET", path="/v1/smuggled"),
        head("Transfer-Encoding: xchunked", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        head("Transfer-Encoding : chunked") + b"0\r\n\r\n",
        head("X: y\nTransfer-Encoding: chunked") + b"0\r\n\r\n",
    ],
)
async def test_ambiguous_framing_is_refused_and_nothing_forwarded(make_fleet: MakeFleet, attack: bytes) -> None:
    fleet = await make_fleet(1)
    async with raw(fleet) as client:
        client.send(attack)
        status, headers, body = await client.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
        assert await client.reader.read() == b""
    assert fleet.engines[0].received == []


async def test_heads_are_bounded(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)
    async with raw(fleet) as client:
        client.send(head("X: " + "a" * 40_000))
        assert (await client.answer())[0] == 431


# What comes back


@pytest.mark.parametrize("chunked", [True, False])
async def test_the_engines_framing_is_kept(make_fleet: MakeFleet, chunked: bool) -> None:
    fleet = await make_fleet(1)
    pieces = [b"x" * size for size in (1, 10_000, 2, 300_000)]

    async def send(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        if not chunked:
            response.content_length = sum(map(len, pieces))
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
        return response

    fleet.engines[0].script = send
    async with raw(fleet) as client:
        client.send(head(f"Content-Length: {len(BODY)}") + BODY)
        _, headers, body = await client.answer()
        assert ("transfer-encoding" in headers) is chunked
        assert body == b"".join(pieces)


async def test_an_http_1_0_client_gets_a_stream_without_chunks(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)
    async with raw(fleet) as client:
        body = json.dumps(chat(stream=True)).encode()
        client.send(b"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        answer_head, _, stream = (await client.reader.read()).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in answer_head.lower()
    assert stream.startswith(chunk("hel") + chunk("lo"))
    assert stream.endswith(b"data: [DONE]\n\n")


async def test_usage_of_a_stream_is_noted(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)
    for _ in range(2):
        async with fleet.post(body=chat(stream=True)) as response:
            await response.read()
        await until(lambda: fleet.slot(fleet.engines[0].id).blocks > 0)
    _, body = await fleet.get("/decisions?last=1")
    (decision,) = body["decisions"]
    assert decision["finish"]["reported_cached_tokens"] == decision["predicted_cached_tokens"] > 0


async def test_many_streams_at_once_each_get_their_own_bytes(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(2, policy="round_robin")

    async def echo(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await begin_stream(request)
        for i in range(20):
            await response.write(chunk(f"{body['messages'][-1]['content']} {i} " * (1 + i % 3)))
            await asyncio.sleep(0)
        return response

    for engine in fleet.engines:
        engine.script = echo

    async def ask(name: str) -> None:
        async with fleet.post(body=chat(name, stream=True)) as response:
            expected = b"".join(chunk(f"{name} {i} " * (1 + i % 3)) for i in range(20))
            assert await response.read() == expected

    await asyncio.gather(*(ask(f"stream-{i}") for i in range(60)))
    await until(fleet.idle)


async def test_a_client_that_does_not_read_holds_up_its_engine_and_nothing_else(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)
    size, stuck, digest = 64, asyncio.Event(), hashlib.sha256()
    sent_mib = 0

    async def flood(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal sent_mib
        response = await begin_stream(request)
        for i in range(size):
            piece = bytes([i]) * (1 << 20)
            digest.update(piece)
            write = asyncio.ensure_future(response.write(piece))
            done, _ = await asyncio.wait([write], timeout=0.3)
            if not done:
                stuck.set()
            await write
            sent_mib += 1
        return response

    fleet.engines[0].script = flood
    async with raw(fleet) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a real transport can
        client.send(head(f"Content-Length: {len(BODY)}") + BODY)
        await stuck.wait()
        assert sent_mib < size / 2, "what sockets hold on the way, and no more"
        assert (await fleet.get("/health"))[0] == 200
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        _, _, body = await client.answer()
    assert len(body) == size << 20
    assert hashlib.sha256(body).digest() == digest.digest()


# What breaks off


async def breaks_off(fleet: Fleet, headers: dict[str, str], sent: bytes) -> None:
    """The engine answers with `sent` and goes away; so does the answer, and nothing is added to it."""

    async def half(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(sent)
        assert request.transport is not None
        request.transport.abort()
        return response

    fleet.engines[0].script = half
    async with raw(fleet) as client:
        client.send(head(f"Content-Length: {len(BODY)}") + BODY)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.answer()


async def test_an_answer_that_is_no_stream_breaks_off(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)

    await breaks_off(fleet, {}, b"half")
    ((_, finish),) = fleet.core.decisions(1)
    assert finish is not None
    assert finish.outcome == "broken"


async def test_no_error_event_goes_into_a_compressed_stream(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)

    headers = {"content-type": "text/event-stream", "content-encoding": "gzip"}
    await breaks_off(fleet, headers, gzip.compress(chunk("one"))[:-3])
