"""The workers' side, on real sockets: a server that does what a test scripts, connection by connection."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from router.http import upstream
from router.http.heads import Header, ResponseHead
from router.http.upstream import Feed, Source, Upstream

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]


class Taken:
    """Takes all of an answer."""

    def __init__(self) -> None:
        self.status = 0
        self.pieces: list[bytes] = []
        self.lasts = 0
        self.source: Source
        self.came = asyncio.Event()

    def begin(self, head: ResponseHead, source: Source) -> Feed:
        self.status, self.source = head.status, source
        return self.feed

    def feed(self, pieces: Sequence[bytes], last: bool) -> None:
        self.pieces += pieces
        self.lasts += last
        self.came.set()


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[str]:
    """`serve` gets each connection and its number, from 0."""
    count = 0

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        try:
            await serve(reader, writer, count - 1)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    return head, await reader.readexactly(int(lengths[0]) if lengths else 0)


async def keep_answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
    while True:
        await read_request(reader)
        writer.write(OK)


@pytest.fixture
async def client() -> AsyncIterator[Upstream]:
    client = Upstream()
    yield client
    client.close()


async def post(client: Upstream, url: str, body: bytes = b"{}", headers: Sequence[Header] = ()) -> Taken:
    taken = Taken()
    await client.exchange(url, b"POST", b"/v1/x?y", headers, body, taken.begin)
    return taken


@pytest.mark.parametrize(
    ("method", "body", "framing"),
    [
        (b"POST", b"{}", b"content-length: 2\r\n"),
        (b"POST", b"", b"content-length: 0\r\n"),
        (b"GET", b"", b""),
        (b"DELETE", b"x", b"content-length: 1\r\n"),
        (b"POST", b"x" * 3_000_000, b"content-length: 3000000\r\n"),
    ],
)
async def test_what_a_worker_gets(client: Upstream, method: bytes, body: bytes, framing: bytes) -> None:
    got: list[tuple[bytes, bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        got.append(await read_request(reader))
        writer.write(OK)

    async with serving(serve) as url:
        await client.exchange(url, method, b"/v1/x?y", [(b"x-a", b"\xff b")], body, (taken := Taken()).begin)
        host = url.removeprefix("http://").encode()
        assert got == [(b"%b /v1/x?y HTTP/1.1\r\nhost: %b\r\nx-a: \xff b\r\n%b\r\n" % (method, host, framing), body)]
    assert (taken.status, taken.pieces, taken.lasts) == (200, [b"ok"], 1)


@pytest.mark.parametrize(
    ("answer", "pieces"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", [b"ab", b"c"]),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", [b"until the end"]),
        (b"HTTP/1.1 204 No Content\r\n\r\n", []),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, [b"ok"]),
    ],
)
async def test_answers(client: Upstream, answer: bytes, pieces: list[bytes]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_request(reader)
        writer.write(answer)

    async with serving(serve) as url:
        taken = await post(client, url)
    assert (taken.pieces, taken.lasts) == (pieces, 1)


# Keeping connections


async def test_a_connection_serves_one_request_after_the_other(client: Upstream) -> None:
    numbers: set[int] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        numbers.add(number)
        await keep_answering(reader, writer, number)

    async with serving(serve) as url:
        for _ in range(3):
            await post(client, url)
        assert numbers == {0}
        await asyncio.gather(*(post(client, url) for _ in range(5)))
        assert len(numbers) == 5, "each request in flight has its own"


async def test_an_idle_connection_is_not_used_when_the_worker_may_be_giving_it_up(
    client: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "MAX_IDLE_S", -1.0)
    ended: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        try:
            await keep_answering(reader, writer, number)
        finally:
            ended.append(number)

    async with serving(serve) as url:
        await post(client, url)
        await post(client, url)
        async with asyncio.timeout(10):
            while ended != [0, 1]:  # noqa: ASYNC110 - nothing would set an event
                await asyncio.sleep(0)


@pytest.mark.parametrize("close", [True, False])
async def test_a_kept_connection_that_ends_under_a_request_is_no_failure(client: Upstream, close: bool) -> None:
    """The worker gave it up, before the request or as it came: a new connection has it answered."""
    served: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_request(reader)
        served.append(number)
        writer.write(OK)
        if number == 0 and not close:
            await read_request(reader)

    async with serving(serve) as url:
        for _ in range(2):
            assert (await post(client, url)).pieces == [b"ok"]
    assert served == [0, 1]


async def test_a_new_connection_that_ends_is_one(client: Upstream) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_request(reader)

    async with serving(serve) as url:
        with pytest.raises(ConnectionError, match="ended before an answer came"):
            await post(client, url)


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\n", b"garbage"])
async def test_a_worker_that_says_more_than_its_answer_is_not_asked_again_there(client: Upstream, extra: bytes) -> None:
    numbers: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        while True:
            await read_request(reader)
            numbers.append(number)
            writer.write(OK + extra)

    async with serving(serve) as url:
        for _ in range(2):
            assert (await post(client, url)).pieces == [b"ok"]
    assert numbers == [0, 1]


# Failures


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", "ended before the answer did"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "ended before the answer did"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\nzz\r\n", "not HTTP/1.1: Invalid"),
        (b"SSH-2.0-x\r\n", "not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\n", "ended before an answer came"),
    ],
)
async def test_a_broken_answer(client: Upstream, answer: bytes, message: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_request(reader)
        writer.write(answer)

    async with serving(serve) as url:
        taken = Taken()
        with pytest.raises(ConnectionError, match=message):
            await client.exchange(url, b"POST", b"/", (), b"", taken.begin)
        assert taken.lasts == 0
        assert b"".join(taken.pieces) in (b"", b"ab")


async def test_a_taker_that_raises_hangs_nobody(client: Upstream) -> None:
    def begin(head: ResponseHead, source: Source) -> Feed:
        raise RuntimeError("a bug")

    async with serving(keep_answering) as url:
        with pytest.raises(ConnectionError, match="could not be delivered"):
            await client.exchange(url, b"POST", b"/", (), b"", begin)


async def test_nobody_listens(client: Upstream) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        await post(client, f"http://127.0.0.1:{port}")


async def test_a_worker_that_does_not_take_connections(client: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*args: object, **options: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(upstream, "CONNECT_TIMEOUT_S", 0.01)
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    with pytest.raises(TimeoutError, match=r"no connection in 0\.01 s"):
        await post(client, "http://127.0.0.1:9")


async def test_a_cancelled_exchange_ends_its_connection(client: Upstream) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_request(reader)
        asked.set()
        await reader.read()
        left.set()

    async with serving(serve) as url:
        task = asyncio.create_task(post(client, url))
        await asked.wait()
        task.cancel()
        await asyncio.wait_for(left.wait(), 10)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_https_is_spoken_to_https(client: Upstream) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        assert (await reader.readexactly(2)) == b"\x16\x03", "a TLS handshake"
        writer.write(OK)

    async with serving(serve) as url:
        with pytest.raises(ssl.SSLError):
            await post(client, url.replace("http:", "https:"))


# Backpressure


async def test_a_paused_answer_stays_with_the_worker(client: Upstream) -> None:
    """What a worker can send while its answer is paused is what sockets hold, of an answer far larger."""
    size = 32 << 20
    stuck = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size >> 20):
            writer.write(b"x" * (1 << 20))
            try:
                await asyncio.wait_for(writer.drain(), 0.2)
            except TimeoutError:
                stuck.set()
                await writer.drain()

    class Slow(Taken):
        def begin(self, head: ResponseHead, source: Source) -> Feed:
            source.pause_reading()
            return super().begin(head, source)

    async with serving(serve) as url:
        taken = Slow()
        task = asyncio.create_task(client.exchange(url, b"POST", b"/", (), b"", taken.begin))
        await asyncio.wait_for(stuck.wait(), 30)
        assert sum(map(len, taken.pieces)) <= 1 << 20
        taken.source.resume_reading()
        await task
    assert sum(map(len, taken.pieces)) == size


async def test_get_keeps_so_much(client: Upstream) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        head, _ = await read_request(reader)
        assert head.startswith(b"GET /metrics HTTP/1.1\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n")

    async with serving(serve) as url:
        assert await client.get(url, "/metrics", max_bytes=4) == (200, b"abcd")
