"""Load for a gateway: chats over many connections, and what came back checked to the byte.

    python benchmarks/http_load.py --port 8000 --connections 64 --seconds 4 --stream

Each connection is one conversation of about `--prompt-kb`, to which every request adds 300 characters; after 10 turns
it goes back to where it began. Each first asks once, since what is to be measured are the turns that follow; then this
prints "ready" and waits for a line. With `--rate` requests start at that pace over all connections, else each
connection asks again as soon as it has its answer. Prints one JSON line.
"""

import asyncio
import sys
import time
from dataclasses import asdict, dataclass, field
from random import Random
from statistics import quantiles
from typing import Any

import click
import httptools
import orjson
import uvloop
from fake_engine import END, event

TURN_CHARS = 300
MAX_TURNS = 10
WORDS = ["the", "ferry", "leaves", "at", "seven", "heron", "kestrel", "osprey", "bicycle", "ticket", "harbour", "tide"]


@dataclass(slots=True)
class Tally:
    """What came of it. Times in seconds."""

    requests: int = 0
    events: int = 0
    errors: int = 0
    wrong_bytes: int = 0
    ttfts_s: list[float] = field(default_factory=list)

    def start(self) -> None:
        """Count from here on, but for what has gone wrong already."""
        self.requests = self.events = 0
        self.ttfts_s.clear()

    def report(self, seconds: float) -> dict[str, Any]:
        cuts = quantiles(self.ttfts_s, n=100) if len(self.ttfts_s) > 1 else [0.0] * 99
        counts = {name: value for name, value in asdict(self).items() if name != "ttfts_s"}
        return counts | {"seconds": seconds, "ttft_p50_ms": cuts[49] * 1e3, "ttft_p99_ms": cuts[98] * 1e3}


class Conversation:
    """Request bodies: a history that grows by a turn each time."""

    def __init__(self, rng: Random, prompt_chars: int, stream: bool) -> None:
        self._rng, self._stream = rng, stream
        self._base = [{"role": "system", "content": self._text(max(TURN_CHARS, prompt_chars - MAX_TURNS * TURN_CHARS))}]
        self._messages = list(self._base)

    def _text(self, chars: int) -> str:
        words = self._rng.choices(WORDS, k=chars // 4)
        return " ".join(words)[:chars]

    def body(self, tag: str) -> bytes:
        if len(self._messages) > MAX_TURNS:
            self._messages = list(self._base)
        role = "user" if len(self._messages) % 2 else "assistant"
        self._messages.append({"role": role, "content": f"tag-{tag} {self._text(TURN_CHARS)}"})
        return orjson.dumps({"model": "m", "stream": self._stream, "max_tokens": 100, "messages": self._messages})


class Connection(asyncio.Protocol):
    """One request at a time; `ask` starts one, and its future is done when its answer is."""

    def __init__(self, tally: Tally, conversation: Conversation, rng: Random, events: int) -> None:
        self._tally, self._conversation, self._rng, self._events = tally, conversation, rng, events
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._answered: asyncio.Future[None] | None = None
        self._body: list[bytes] = []
        self._tag, self._asked_s = "", 0.0

    def ask(self) -> asyncio.Future[None]:
        self._tag = f"{self._rng.getrandbits(40):x}"
        body = self._conversation.body(self._tag)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n"
        self._answered, self._body = asyncio.get_running_loop().create_future(), []
        self._asked_s = time.perf_counter()
        self._transport.write(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
        return self._answered

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, piece: bytes) -> None:
        if not self._body:
            self._tally.ttfts_s.append(time.perf_counter() - self._asked_s)
        self._body.append(piece)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        self._tally.requests += 1
        self._tally.errors += self._parser.get_status_code() != 200
        if self._events:
            self._tally.events += body.count(b"data: ") - 2  # the usage and [DONE] are no tokens
            self._tally.wrong_bytes += body != b"".join(event(self._tag, i) for i in range(self._events)) + END
        if self._answered is not None:
            self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            self._tally.errors += 1
            self._answered.set_result(None)


async def run(port: int, connections: int, seconds: float, prompt_chars: int, events: int, rate: float) -> Tally:
    tally, rng, loop = Tally(), Random(), asyncio.get_running_loop()

    async def meet() -> Connection:
        conversation = Conversation(rng, prompt_chars, bool(events))
        _, connection = await loop.create_connection(
            lambda: Connection(tally, conversation, rng, events), "127.0.0.1", port
        )
        await connection.ask()
        return connection

    async def converse(connection: Connection) -> None:
        due_s = loop.time() + (rng.random() * connections / rate if rate else 0.0)
        while (now_s := loop.time()) < end_s:
            if rate:
                await asyncio.sleep(max(0.0, due_s - now_s))
                due_s += connections / rate
            await connection.ask()
            if connection._transport.is_closing():
                return

    met = await asyncio.gather(*(meet() for _ in range(connections)))
    click.echo("ready")
    sys.stdin.readline()
    tally.start()
    end_s = loop.time() + seconds
    await asyncio.gather(*map(converse, met))
    return tally


@click.command
@click.option("--port", type=int, required=True)
@click.option("--connections", type=int, default=8, show_default=True)
@click.option("--seconds", type=float, default=4.0, show_default=True)
@click.option("--prompt-kb", type=float, default=2.0, show_default=True)
@click.option("--events", type=int, default=0, help="Stream, and expect so many events; 0: do not stream.")
@click.option("--rate", type=float, default=0.0, help="Requests a second over all connections; 0: as fast as it goes.")
def main(port: int, connections: int, seconds: float, prompt_kb: float, events: int, rate: float) -> None:
    """Put load on whatever listens on 127.0.0.1:PORT, and say what came back."""
    tally = uvloop.run(run(port, connections, seconds, int(prompt_kb * 1000), events, rate))
    click.echo(orjson.dumps(tally.report(seconds)).decode())


if __name__ == "__main__":
    main()
