"""Captured frames, a recorder of deliveries and a scripted engine for the tests of kv_events/."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio

from kv_events.deliveries import Batch, Delivery, Lost, Reset, Synced
from kv_events.publisher import ZmqPublisher
from kv_events.sources import EventSource
from kv_events.subscriber import Subscriber, Switchboard

DATA = Path(__file__).parents[1] / "data"
TIMEOUT_S = 20


@pytest.fixture(scope="session")
def records() -> Callable[[str], list[dict[str, Any]]]:
    """The lines of a capture file."""

    def read(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (DATA / name).read_text().splitlines()]

    return read


@pytest.fixture(scope="session")
def frames(records: Callable[[str], list[dict[str, Any]]]) -> Callable[[str], list[dict[str, Any]]]:
    """The lines of a capture file that hold a payload and what it decodes to."""

    def read(name: str) -> list[dict[str, Any]]:
        return [record for record in records(name) if "payload_hex" in record and "decoded" in record]

    return read


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def ipv6() -> None:
    """Skips on a machine without an IPv6 loopback."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")


class Recorder:
    """Takes deliveries; tests wait until they are as they should be."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self._changed = asyncio.Event()

    def __call__(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self._changed.set()

    @property
    def seqs(self) -> list[int]:
        return [d.seq for d in self.deliveries if isinstance(d, Batch)]

    @property
    def turns(self) -> list[Delivery]:
        """All but the batches."""
        return [d for d in self.deliveries if not isinstance(d, Batch)]

    @property
    def since_reset(self) -> list[int]:
        last = max((i for i, d in enumerate(self.deliveries) if isinstance(d, Reset)), default=-1)
        return [d.seq for d in self.deliveries[last + 1 :] if isinstance(d, Batch)]

    def count(self, kind: type[Delivery]) -> int:
        return Counter(map(type, self.deliveries))[kind]

    async def until(self, condition: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pytest.fail(f"not reached; turns {self.turns}, {len(self.seqs)} batches, the last {self.seqs[-5:]}")

    async def until_synced(self, times: int = 1) -> None:
        await self.until(lambda: self.count(Synced) >= times)

    async def until_lost(self, times: int = 1) -> None:
        await self.until(lambda: self.count(Lost) >= times)


@dataclass
class Follow:
    """Starts subscribers and closes them when the test ends."""

    switchboard: Switchboard
    subscribers: list[Subscriber] = field(default_factory=list)

    def __call__(self, source: EventSource, *, replay_timeout_s: float = TIMEOUT_S) -> Recorder:
        recorder = Recorder()
        subscriber = Subscriber(source, recorder, self.switchboard, replay_timeout_s=replay_timeout_s)
        subscriber.start()
        self.subscribers.append(subscriber)
        return recorder


@pytest.fixture
async def follow() -> AsyncIterator[Follow]:
    follow = Follow(Switchboard())
    yield follow
    for subscriber in follow.subscribers:
        await subscriber.close()
    await follow.switchboard.close()


@pytest.fixture
def publish_on() -> Iterator[Callable[..., ZmqPublisher]]:
    """Makes publishers and closes them when the test ends."""
    publishers: list[ZmqPublisher] = []

    def make(endpoint: str = "tcp://*:0", replay_endpoint: str | None = "tcp://*:0", **options: Any) -> ZmqPublisher:
        publishers.append(ZmqPublisher(endpoint, replay_endpoint, **options))
        return publishers[-1]

    yield make
    for publisher in publishers:
        publisher.close()


class ScriptedEngine:
    """An engine's two sockets, in the hands of the test.

    `ring` is what it can replay. Each request is answered by the next of `scripts`, then by `whole`.
    """

    END = (b"", b"\xff" * 8, b"")

    def __init__(self, payloads: list[bytes], topic: bytes = b"") -> None:
        self.topic = topic
        self.ring = dict(enumerate(payloads))
        self.requests: list[int] = []
        self.clients: list[bytes] = []
        self.scripts: list[Callable[[int], list[tuple[bytes, ...]]]] = []
        self.context = zmq.asyncio.Context()
        self.pub = self.context.socket(zmq.XPUB)  # which, unlike PUB, tells of subscriptions
        self.pub.sndhwm = 0
        self.router = self.context.socket(zmq.ROUTER)
        ports = [s.bind_to_random_port("tcp://127.0.0.1") for s in (self.pub, self.router)]
        self.endpoint, self.replay_endpoint = (f"tcp://127.0.0.1:{port}" for port in ports)
        self._request = asyncio.Condition()
        self._serving = asyncio.create_task(self._serve())

    def source(self) -> EventSource:
        return EventSource(self.endpoint, self.replay_endpoint, self.topic.decode())

    async def subscribed(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            assert (await self.pub.recv())[:1] == b"\x01"

    async def send(self, *seqs: int) -> None:
        for seq in seqs:
            await self.pub.send_multipart(self.batch(seq))

    def batch(self, seq: int) -> tuple[bytes, ...]:
        return self.topic, seq.to_bytes(8, "big"), self.ring[seq]

    def whole(self, start: int) -> list[tuple[bytes, ...]]:
        return [*(self.batch(seq) for seq in self.ring if seq >= start), self.END]

    async def asked(self, times: int) -> None:
        async with asyncio.timeout(TIMEOUT_S), self._request:
            await self._request.wait_for(lambda: len(self.requests) >= times)

    async def answer(self, request: int, messages: list[tuple[bytes, ...]]) -> None:
        for frames in messages:
            await self.router.send_multipart((self.clients[request], b"", *frames))

    async def _serve(self) -> None:
        while True:
            client, empty, start = await self.router.recv_multipart()
            assert empty == b""
            async with self._request:
                self.clients.append(client)
                self.requests.append(int.from_bytes(start, "big"))
                self._request.notify_all()
            script = self.scripts.pop(0) if self.scripts else self.whole
            await self.answer(-1, script(self.requests[-1]))

    async def close(self) -> None:
        self._serving.cancel()
        await asyncio.wait([self._serving])
        self.context.destroy(linger=0)


@pytest.fixture
async def engine(frames: Callable[[str], list[dict[str, Any]]]) -> AsyncIterator[ScriptedEngine]:
    """Has what a real engine published in its life: the batches 0 to 30 of the first capture."""
    captured = {
        r["seq"]: bytes.fromhex(r["payload_hex"]) for r in frames("vllm_events.jsonl") if r["topic"] == "kv-events"
    }
    engine = ScriptedEngine([captured[seq] for seq in range(31)], topic=b"kv-events")
    yield engine
    await engine.close()
