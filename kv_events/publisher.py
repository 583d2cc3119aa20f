"""Publishing a worker's events as vLLM 0.32 does: a PUB socket for what is new, a ROUTER that replays what was.

The engine thread only takes a number and queues. It takes the number first, so that a batch dropped at a full queue
shows as a gap to every subscriber. One thread encodes and publishes; another answers replays from a ring of the last
batches, so that a replay never holds up a live event.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Protocol

import zmq

from kv_events.codec import encode_batch
from kv_events.endpoints import for_rank, publisher_binds, with_host
from kv_events.events import EventBatch, KvEvent
from kv_events.frames import END_OF_REPLAY, encode_seq


class EventPublisher(Protocol):
    """Where an engine's events go."""

    def publish(self, events: Sequence[KvEvent]) -> None:
        """One engine step's events, in order, always from the same thread. Never blocks; no events, no batch."""

    def close(self) -> None:
        """Ends the threads and frees the sockets. Publish nothing afterwards; closing again is fine."""

    def describe(self) -> dict[str, object]:
        """This rank's entry in GET /kv_event_sources, in vLLM 0.32's form."""


class NullPublisher:
    """Publishes nothing: for a worker without KV events."""

    def publish(self, events: Sequence[KvEvent]) -> None:
        pass

    def close(self) -> None:
        pass

    def describe(self) -> dict[str, object]:
        return {"enable_kv_cache_events": False, "publisher": "null", "endpoint": None, "replay_endpoint": None}


class ZmqPublisher:
    """Publishes on `endpoint` and replays the last `buffer_steps` batches on `replay_endpoint` (None: no replay).

    `endpoint` binds when it has a wildcard host, an IPv6 address with `::`, port 0 or ipc://, and connects otherwise;
    `replay_endpoint` always binds. The host `*` stands for `bind_host`, and a port other than 0 is shifted by `rank`.
    `hwm` bounds the batches that wait for one subscriber, `max_queue_size` those that wait for the publishing thread.
    Raises ValueError for an endpoint that is none, OSError for one that cannot be bound.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None = None,
        *,
        topic: str = "",
        rank: int = 0,
        buffer_steps: int = 10_000,
        hwm: int = 100_000,
        max_queue_size: int = 100_000,
        bind_host: str = "127.0.0.1",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._topic = topic
        self._rank = rank
        self._buffer_steps = buffer_steps
        self._hwm = hwm
        self._max_queue_size = max_queue_size
        self._clock = clock
        self._next_seq = 0
        self.dropped_batches = 0
        self._queue: SimpleQueue[tuple[int, EventBatch] | None] = SimpleQueue()  # bounded in publish()
        self._ring: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._ring_lock = Lock()
        self._context = zmq.Context()
        self._context.linger = 0  # the last events of a worker that goes away are news to nobody
        try:
            pub, self._endpoint = self._open_pub(endpoint, bind_host)
            self._threads = [Thread(target=self._publish_queued, args=(pub,), name="kv-events", daemon=True)]
            self._replay_endpoint = None
            if replay_endpoint is not None:
                router, self._replay_endpoint = self._open_router(replay_endpoint, bind_host)
                self._threads.append(Thread(target=self._answer_replays, args=(router,), name="kv-replay", daemon=True))
        except (OSError, ValueError):
            self._context.destroy()
            raise
        for thread in self._threads:
            thread.start()

    def publish(self, events: Sequence[KvEvent]) -> None:
        if not events:
            return
        seq, self._next_seq = self._next_seq, self._next_seq + 1
        if self._queue.qsize() >= self._max_queue_size:
            self.dropped_batches += 1
            return
        self._queue.put((seq, EventBatch(self._clock(), tuple(events), self._rank)))

    def close(self) -> None:
        publishing, *replaying = self._threads
        self._queue.put(None)
        publishing.join()
        self._context.term()  # wakes the replaying thread, returns when that has closed its socket
        for thread in replaying:
            thread.join()

    def describe(self) -> dict[str, object]:
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self._endpoint,
            "replay_endpoint": self._replay_endpoint,
            "buffer_steps": self._buffer_steps,
            "hwm": self._hwm,
            "max_queue_size": self._max_queue_size,
            "topic": self._topic,
        }

    def _open_pub(self, endpoint: str, bind_host: str) -> tuple[zmq.Socket[bytes], str]:
        pub = self._context.socket(zmq.PUB)
        pub.sndhwm = self._hwm
        return pub, _attach(pub, self._own(endpoint, bind_host), binds=publisher_binds(endpoint))

    def _open_router(self, endpoint: str, bind_host: str) -> tuple[zmq.Socket[bytes], str]:
        router = self._context.socket(zmq.ROUTER)
        router.sndhwm = 2 * (self._buffer_steps + 1)  # a whole ring with its end fits, though another may be under way
        return router, _attach(router, self._own(endpoint, bind_host), binds=True)

    def _own(self, endpoint: str, bind_host: str) -> str:
        return for_rank(with_host(endpoint, bind_host, {"*"}), self._rank)

    def _publish_queued(self, pub: zmq.Socket[bytes]) -> None:
        topic = self._topic.encode()
        with pub:
            while (numbered := self._queue.get()) is not None:
                seq, batch = numbered
                payload = encode_batch(batch)
                with self._ring_lock:  # before it is live: whoever sees a gap finds it here
                    self._ring.append((seq, payload))
                pub.send_multipart((topic, encode_seq(seq), payload))

    def _answer_replays(self, router: zmq.Socket[bytes]) -> None:
        with router, suppress(zmq.ContextTerminated):
            while True:
                request = router.recv_multipart()
                if len(request) == 3:
                    client, _, start = request
                    self._replay(router, client, int.from_bytes(start, "big"))

    def _replay(self, router: zmq.Socket[bytes], client: bytes, start: int) -> None:
        """Sends the ring from `start` on. A ROUTER never waits: it drops what a client cannot take."""
        topic = self._topic.encode()
        with self._ring_lock:
            batches = [(seq, payload) for seq, payload in self._ring if seq >= start]
        for seq, payload in batches:
            router.send_multipart((client, b"", topic, encode_seq(seq), payload))
        router.send_multipart((client, b"", b"", encode_seq(END_OF_REPLAY), b""))


def _attach(socket: zmq.Socket[bytes], endpoint: str, *, binds: bool) -> str:
    """Binds or connects; returns the concrete endpoint, with the port that stands for port 0. Raises OSError."""
    socket.ipv6 = "[" in endpoint
    try:
        if not binds:
            socket.connect(endpoint)
            return endpoint
        socket.bind(endpoint)
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)
    except zmq.ZMQError as error:
        verb = "bind" if binds else "connect to"
        raise OSError(error.errno, f"cannot {verb} {endpoint}: {error.strerror}") from error
