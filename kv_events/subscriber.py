"""Following a source: sockets in, deliveries out, on the event loop. What to do with a batch is the tracker's to say.

Sockets are read when libzmq's descriptor wakes the loop, a bounded number of messages a turn, so that a flood of events
leaves time for everything else. (zmq.asyncio could do the waiting; with its futures and pollers an event that comes
alone costs 230 us of CPU time instead of 85 us.)
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import zmq
from zmq.utils.monitor import parse_monitor_message

from kv_events.codec import DecodeError, decode_batch
from kv_events.deliveries import Batch, Delivery, Reset, ResetReason, Synced
from kv_events.endpoints import with_host
from kv_events.frames import END_OF_REPLAY, encode_seq, parse_message
from kv_events.sources import EventSource
from kv_events.tracker import Action, AskReplay, Deliver, SequenceTracker, State

MESSAGES_PER_TURN = 64  # a millisecond or so
HWM = 100_000  # messages, in each queue: what an engine holds back for us before it drops, by its default
HEARTBEAT_MS = 2_000  # else an engine whose host dies, without a closed connection, would look idle
HEARTBEAT_TIMEOUT_MS = 6_000


class Subscriber:
    """Follows one source and hands `deliver` what it yields, in order, on the event loop.

    Each connection begins with a replay; `Synced` says that all is known, `Lost` that it is not any more. Reconnecting
    is up to the subscriber. `replay_timeout_s` bounds the silence of a replay before it is asked for again.
    """

    def __init__(
        self,
        source: EventSource,
        deliver: Callable[[Delivery], None],
        switchboard: "Switchboard",
        *,
        replay_timeout_s: float = 2.0,
    ) -> None:
        self._source = source
        self._deliver = deliver
        self._switchboard = switchboard
        self._replay_timeout_s = replay_timeout_s
        self._replay_deadline_s = 0.0  # on the loop's clock
        self._tracker = SequenceTracker[bytes](can_replay=source.replay_endpoint is not None)
        self._task: asyncio.Task[None] | None = None
        self.undecodable_batches = 0

    def __repr__(self) -> str:
        return f"<Subscriber {self._source.endpoint} rank={self._source.rank} {self._tracker!r}>"

    def start(self) -> None:
        """Begins to follow. Raises OSError when the source's endpoint is ours to bind and cannot be bound."""
        address = self._switchboard.address(self._source.endpoint) if self._source.binds else self._source.endpoint
        self._task = _spawn(self._run(address))

    async def close(self) -> None:
        """Stops; nothing is delivered afterwards."""
        if self._task is not None:
            await _cancelled(self._task)

    async def _run(self, address: str) -> None:
        while True:
            link = _Link(self._switchboard.context, self._source, address)
            try:
                await self._follow(link)
            finally:
                link.close()

    async def _follow(self, link: "_Link") -> None:
        """Until the connection is lost."""
        if self._source.binds:  # engines come and go on a shared socket unseen: try, the replay will tell
            await self._perform(link, self._tracker.connected())
        while await self._still_up(link):
            await self._read_replies(link)
            await self._read_live(link)
            await link.ready(self._replay_deadline_s if self._tracker.state is State.REPLAYING else None)

    async def _still_up(self, link: "_Link") -> bool:
        for is_up in link.changes():
            if is_up:
                await self._perform(link, self._tracker.connected())
            elif lost := self._tracker.disconnected("connection closed"):
                await self._perform(link, lost)
                return False
        return True

    async def _read_replies(self, link: "_Link") -> None:
        for seq, payload in link.replies():
            self._await_reply()
            ended = seq == END_OF_REPLAY
            await self._perform(link, self._tracker.replay_ended() if ended else self._tracker.replayed(seq, payload))
        if asyncio.get_running_loop().time() >= self._replay_deadline_s:
            await self._perform(link, self._tracker.replay_timed_out())

    async def _read_live(self, link: "_Link") -> None:
        for seq, payload in link.live():
            await self._perform(link, self._tracker.live(seq, payload))

    async def _perform(self, link: "_Link", actions: Sequence[Action[bytes]]) -> None:
        for count, action in enumerate(actions, start=1):
            match action:
                case Deliver(seq, payload):
                    self._hand_on(seq, payload)
                case AskReplay(start):
                    link.ask(start)
                    self._await_reply()
                case delivery:
                    self._deliver(delivery)
            if count % MESSAGES_PER_TURN == 0:  # all that was buffered during a replay comes at once
                await asyncio.sleep(0)

    def _hand_on(self, seq: int, payload: bytes) -> None:
        try:
            self._deliver(Batch(seq, decode_batch(payload)))
        except DecodeError:
            self.undecodable_batches += 1
            self._deliver(Reset(ResetReason.UNDECODABLE))
            if self._tracker.state is State.LIVE:  # else a replay runs, and Synced is still to come
                self._deliver(Synced())

    def _await_reply(self) -> None:
        self._replay_deadline_s = asyncio.get_running_loop().time() + self._replay_timeout_s


class Switchboard:
    """The ZeroMQ context of one event loop, and the endpoints that it binds for engines to connect to.

    An endpoint is bound once, on first use, for all sources that name it (there are as many as a configuration names).
    What arrives there is published again inside the process, so that a subscriber connects to a PUB socket either way.
    The host `*` stands for `bind_host`.
    """

    def __init__(self, bind_host: str = "127.0.0.1") -> None:
        self.context = zmq.Context()
        self.context.linger = 0
        self._bind_host = bind_host
        self._relays: dict[str, _Relay] = {}

    def address(self, endpoint: str) -> str:
        """Where to subscribe to what engines send to `endpoint`. Raises OSError when it cannot be bound."""
        if endpoint not in self._relays:
            self._relays[endpoint] = _Relay(self.context, with_host(endpoint, self._bind_host, {"*"}))
        return self._relays[endpoint].address

    async def close(self) -> None:
        """Frees every socket; close the subscribers first."""
        for relay in self._relays.values():
            await relay.close()
        self.context.destroy()


class _Relay:
    """Binds an endpoint and publishes what comes there on `address`, inside the process."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self.address = f"inproc://{endpoint}"
        self._front = _socket(context, zmq.SUB, endpoint)
        self._front.subscribe(b"")
        try:
            self._front.bind(endpoint)
        except zmq.ZMQError as error:
            self._front.close()
            raise OSError(error.errno, f"cannot bind {endpoint}: {error.strerror}") from error
        self._back = _socket(context, zmq.PUB, self.address)
        self._back.bind(self.address)
        self._task = _spawn(self._run())

    async def _run(self) -> None:
        reader = _Reader()
        with reader.watching(self._front):
            while True:
                for frames in reader.messages(self._front):
                    self._back.send_multipart(frames)
                await reader.ready()

    async def close(self) -> None:
        await _cancelled(self._task)
        self._front.close()
        self._back.close()


class _Link:
    """The sockets of one connection: a SUB for live batches, a DEALER for the replay that runs, a monitor of the peer.

    Every connection gets fresh ones, so nothing is left in a queue of an engine that went away, and every replay gets a
    fresh DEALER, so no answer to an earlier request can be taken for one to this.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], source: EventSource, address: str) -> None:
        self._context = context
        self._source = source
        self._topic = source.topic.encode()
        self._reader = _Reader()
        self._monitor: zmq.Socket[bytes] | None = None
        self._dealer: zmq.Socket[bytes] | None = None
        self._connection, self._replay = ExitStack(), ExitStack()
        self._sub = _socket(context, zmq.SUB, address)
        self._sub.subscribe(self._topic)
        self._open(self._sub, address, self._connection, watch_peer=not source.binds)

    def ask(self, start: int) -> None:
        """Requests the batches from `start` on; the request before is forgotten."""
        assert self._source.replay_endpoint is not None
        self._replay.close()
        self._dealer = _socket(self._context, zmq.DEALER, self._source.replay_endpoint)
        self._open(self._dealer, self._source.replay_endpoint, self._replay, watch_peer=self._source.binds)
        self._dealer.send_multipart((b"", encode_seq(start)))

    def changes(self) -> Iterator[bool]:
        """True for each time that the engine was connected, False for each that it was lost."""
        if self._monitor is not None:
            for frames in self._reader.messages(self._monitor):
                yield parse_monitor_message(frames)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED

    def live(self) -> Iterator[tuple[int, bytes]]:
        """(seq, payload) of live batches of exactly our topic; a subscription takes every topic that begins so."""
        for frames in self._reader.messages(self._sub):
            message = parse_message(frames)
            if message is not None and (not self._topic or frames[0] == self._topic):
                yield message

    def replies(self) -> Iterator[tuple[int, bytes]]:
        """(seq, payload) of what the running replay brings."""
        if self._dealer is not None:
            for frames in self._reader.messages(self._dealer):
                if (message := parse_message(frames)) is not None:
                    yield message

    async def ready(self, until: float | None) -> None:
        """Until there may be something to read, or the loop's clock shows `until`."""
        await self._reader.ready(until)

    def close(self) -> None:
        self._replay.close()
        self._connection.close()

    def _open(self, socket: zmq.Socket[bytes], endpoint: str, stack: ExitStack, *, watch_peer: bool) -> None:
        stack.callback(socket.close)
        if watch_peer:  # in bind mode the replay's DEALER, for on the shared SUB nobody can tell who went away
            self._monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            stack.callback(self._monitor.close)
            stack.callback(socket.disable_monitor)
            stack.enter_context(self._reader.watching(self._monitor))
        stack.enter_context(self._reader.watching(socket))
        socket.connect(endpoint)


class _Reader:
    """Wakes one task when any of its sockets may have something to read."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()

    @contextmanager
    def watching(self, socket: zmq.Socket[bytes]) -> Iterator[None]:
        self._loop.add_reader(socket.FD, self._wake.set)
        try:
            yield
        finally:
            self._loop.remove_reader(socket.FD)

    def messages(self, socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
        """What can be read now, at most MESSAGES_PER_TURN, the rest at the next turn. Ends if the socket is closed.

        To stop before the last would be to sleep on it: the descriptor tells of changes only.
        """
        for _ in range(MESSAGES_PER_TURN):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            yield frames
            if socket.closed:
                return
        self._wake.set()

    async def ready(self, until: float | None = None) -> None:
        """Until there may be something to read, or the loop's clock shows `until`; other tasks get a turn anyway."""
        if self._wake.is_set():
            await asyncio.sleep(0)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._wake.wait()
        self._wake.clear()


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.set_hwm(HWM)
    socket.ipv6 = "[" in endpoint
    socket.heartbeat_ivl = HEARTBEAT_MS
    socket.heartbeat_timeout = HEARTBEAT_TIMEOUT_MS
    return socket


def _spawn(coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
    task = asyncio.create_task(coroutine)
    task.add_done_callback(_report)
    return task


def _report(task: asyncio.Task[None]) -> None:
    """A bug, in `deliver` perhaps, must not end in a source that is quiet for no reason."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler(
            {"message": "KV events: a task failed", "exception": error, "task": task}
        )


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
