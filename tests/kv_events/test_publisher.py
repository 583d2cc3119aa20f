"""The publisher against plain ZeroMQ clients: the frames, the replay, the endpoints, and that it never blocks."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import zmq

from kv_events import publisher as publisher_module
from kv_events.codec import decode_batch, encode_batch
from kv_events.events import AllBlocksCleared, BlockRemoved, EventBatch, KvEvent
from kv_events.publisher import EventPublisher, NullPublisher, ZmqPublisher

TIMEOUT_MS = 20_000
END = [b"", b"", b"\xff" * 8, b""]

PublishOn = Callable[..., ZmqPublisher]
Client = Callable[[int], "zmq.Socket[bytes]"]


@pytest.fixture
def client() -> Iterator[Client]:
    context = zmq.Context()
    with ExitStack() as sockets:

        def make(kind: int) -> "zmq.Socket[bytes]":
            socket = sockets.enter_context(context.socket(kind))
            socket.linger = 0
            socket.rcvtimeo = TIMEOUT_MS
            if kind == zmq.SUB:
                socket.subscribe(b"")
            return socket

        yield make
    context.term()


def events(number: int) -> list[KvEvent]:
    return [BlockRemoved((number,))]


def payload(number: int, ts_s: float = 7.0) -> bytes:
    return encode_batch(EventBatch(ts_s, tuple(events(number)), 0))


def replay(dealer: "zmq.Socket[bytes]", start: int) -> list[list[bytes]]:
    """Everything that comes, end marker included."""
    dealer.send_multipart((b"", start.to_bytes(8, "big")))
    messages = [dealer.recv_multipart()]
    while messages[-1] != END:
        messages.append(dealer.recv_multipart())
    return messages


def until_ring_has(dealer: "zmq.Socket[bytes]", last_seq: int) -> list[list[bytes]]:
    """A whole replay, once the publishing thread has come so far."""
    deadline = monotonic() + TIMEOUT_MS / 1000
    while monotonic() < deadline:
        messages = replay(dealer, 0)
        if len(messages) > 1 and messages[-2][2] == last_seq.to_bytes(8, "big"):
            return messages
    pytest.fail(f"batch {last_seq} never reached the ring")


def publish_until_received(publisher: ZmqPublisher, sub: "zmq.Socket[bytes]") -> list[bytes]:
    """A subscription takes a moment to arrive, and what is published before is not for it."""
    for number in range(TIMEOUT_MS // 20):
        publisher.publish(events(number))
        if sub.poll(20):
            return sub.recv_multipart()
    pytest.fail("no live batch was received")


def test_live_frames_are_those_of_vllm(publish_on: PublishOn, client: Client) -> None:
    publisher = publish_on(topic="kv@worker", clock=lambda: 7.0)
    sub = client(zmq.SUB)
    sub.connect(str(publisher.describe()["endpoint"]))
    topic, seq, body = publish_until_received(publisher, sub)
    assert topic == b"kv@worker"
    assert len(seq) == 8
    assert body == payload(int.from_bytes(seq, "big"))


def test_replay_frames_are_those_of_the_capture(
    publish_on: PublishOn, client: Client, records: Callable[[str], list[dict[str, Any]]]
) -> None:
    [asked] = [r for r in records("vllm_events.jsonl") if r.get("label") == "replay from 5"]
    publisher = publish_on(topic="kv-events", clock=lambda: 7.0)
    for number in range(asked["last_seq"] + 1):
        publisher.publish(events(number))
    dealer = client(zmq.DEALER)
    dealer.connect(str(publisher.describe()["replay_endpoint"]))
    until_ring_has(dealer, asked["last_seq"])

    dealer.send_multipart([bytes.fromhex(frame) for frame in asked["request_frames_hex"]])
    messages = [dealer.recv_multipart() for _ in range(asked["messages"])]
    assert messages[0] == [b"", b"kv-events", asked["first_seq"].to_bytes(8, "big"), payload(asked["first_seq"])]
    assert messages[-2] == [b"", b"kv-events", asked["last_seq"].to_bytes(8, "big"), payload(asked["last_seq"])]
    assert messages[-1] == [bytes.fromhex(frame) for frame in asked["end_marker_frames_hex"]]
    assert replay(dealer, 10**6) == [END]


def test_ring_keeps_the_last_steps(publish_on: PublishOn, client: Client) -> None:
    publisher = publish_on(buffer_steps=5)
    for number in range(9):
        publisher.publish(events(number))
    dealer = client(zmq.DEALER)
    dealer.connect(str(publisher.describe()["replay_endpoint"]))
    messages = until_ring_has(dealer, 8)
    assert [int.from_bytes(m[2], "big") for m in messages[:-1]] == [4, 5, 6, 7, 8]


def test_malformed_request_costs_no_other(publish_on: PublishOn, client: Client) -> None:
    publisher = publish_on()
    dealer = client(zmq.DEALER)
    dealer.connect(str(publisher.describe()["replay_endpoint"]))
    dealer.send_multipart((b"nonsense",))
    dealer.send_multipart((b"", b"too", b"many"))
    assert replay(dealer, 0) == [END]


def test_request_socket_gets_the_first_batch(publish_on: PublishOn, client: Client) -> None:
    publisher = publish_on(clock=lambda: 7.0)
    publisher.publish(events(0))
    dealer, request = client(zmq.DEALER), client(zmq.REQ)
    for socket in (dealer, request):
        socket.connect(str(publisher.describe()["replay_endpoint"]))
    until_ring_has(dealer, 0)
    request.send((0).to_bytes(8, "big"))
    assert request.recv_multipart() == [b"", bytes(8), payload(0)]


def test_step_without_events_is_no_batch(publish_on: PublishOn, client: Client) -> None:
    publisher = publish_on()
    for step in ([], [AllBlocksCleared()], [], [AllBlocksCleared()]):
        publisher.publish(step)
    dealer = client(zmq.DEALER)
    dealer.connect(str(publisher.describe()["replay_endpoint"]))
    messages = until_ring_has(dealer, 1)
    assert len(messages) == 3
    assert decode_batch(messages[0][3]).events == (AllBlocksCleared(),)


def test_full_queue_drops_a_batch_and_keeps_its_number(
    publish_on: PublishOn, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding, go_on = threading.Event(), threading.Event()

    def slow_encode(batch: EventBatch) -> bytes:
        encoding.set()
        assert go_on.wait(TIMEOUT_MS / 1000)
        return encode_batch(batch)

    monkeypatch.setattr(publisher_module, "encode_batch", slow_encode)
    publisher = publish_on(max_queue_size=2)
    publisher.publish(events(0))
    assert encoding.wait(TIMEOUT_MS / 1000)
    for number in range(1, 6):
        publisher.publish(events(number))
    assert publisher.dropped_batches == 3
    go_on.set()
    dealer = client(zmq.DEALER)
    dealer.connect(str(publisher.describe()["replay_endpoint"]))
    until_ring_has(dealer, 2)
    publisher.publish(events(6))
    messages = until_ring_has(dealer, 6)
    assert [int.from_bytes(m[2], "big") for m in messages[:-1]] == [0, 1, 2, 6]


def test_nobody_listening_blocks_nothing(publish_on: PublishOn, free_port: int) -> None:
    for publisher in (publish_on(hwm=1), publish_on(f"tcp://127.0.0.1:{free_port}", hwm=1)):
        for number in range(3000):
            publisher.publish(events(number))
        publisher.close()
        assert publisher.dropped_batches == 0


def test_client_that_does_not_read_its_replays_holds_up_nobody(publish_on: PublishOn, client: Client) -> None:
    publisher = publish_on(buffer_steps=50)
    replay_endpoint = str(publisher.describe()["replay_endpoint"])
    for _ in range(50):
        publisher.publish([BlockRemoved(tuple(range(2**40, 2**40 + 10_000)))])
    reading, lazy, live = client(zmq.DEALER), client(zmq.DEALER), client(zmq.SUB)
    lazy.rcvhwm = 1
    for dealer in (reading, lazy):
        dealer.connect(replay_endpoint)
    live.connect(str(publisher.describe()["endpoint"]))
    until_ring_has(reading, 49)
    for _ in range(40):
        lazy.send_multipart((b"", bytes(8)))  # 180 MB in all, more than any socket buffer takes
    assert len(replay(reading, 0)) == 51
    assert publish_until_received(publisher, live)


def test_replay_is_whole_for_a_client_that_reads_it_late(publish_on: PublishOn, client: Client) -> None:
    publisher = publish_on(buffer_steps=2500)
    for _ in range(2500):
        publisher.publish([BlockRemoved(tuple(range(2**40, 2**40 + 1000)))])  # 22 MB in all: the socket buffers fill
    late, other = client(zmq.DEALER), client(zmq.DEALER)
    late.rcvhwm = 1
    for dealer in (late, other):
        dealer.connect(str(publisher.describe()["replay_endpoint"]))
    until_ring_has(other, 2499)
    late.send_multipart((b"", bytes(8)))
    first = late.recv_multipart()
    assert replay(other, 10**6) == [END], "answered in turn, so the late client's replay is out"
    rest = [late.recv_multipart() for _ in range(2500)]
    assert [int.from_bytes(m[2], "big") for m in [first, *rest[:-1]]] == list(range(2500))
    assert rest[-1] == END


def test_connects_to_a_subscriber_that_is_bound(publish_on: PublishOn, client: Client) -> None:
    sub = client(zmq.SUB)
    port = sub.bind_to_random_port("tcp://127.0.0.1")
    publisher = publish_on(f"tcp://127.0.0.1:{port}")
    assert publisher.describe()["endpoint"] == f"tcp://127.0.0.1:{port}"
    assert publish_until_received(publisher, sub)


def test_rank_shifts_ports_and_stands_in_the_batch(publish_on: PublishOn, client: Client, free_port: int) -> None:
    publisher = publish_on("tcp://*:0", f"tcp://*:{free_port - 2}", rank=2)
    assert publisher.describe()["replay_endpoint"] == f"tcp://127.0.0.1:{free_port}"
    publisher.publish(events(0))
    dealer = client(zmq.DEALER)
    dealer.connect(f"tcp://127.0.0.1:{free_port}")
    assert decode_batch(until_ring_has(dealer, 0)[0][3]).data_parallel_rank == 2


def test_description_is_that_of_vllm(publish_on: PublishOn, records: Callable[[str], list[dict[str, Any]]]) -> None:
    described = publish_on(topic="kv-events").describe()
    captured = records("vllm_events.jsonl")[0]["kv_event_sources"]
    assert list(described) == list(captured)
    concrete = {"endpoint", "replay_endpoint"}
    assert {k: v for k, v in described.items() if k not in concrete} == {
        k: v for k, v in captured.items() if k not in concrete
    }
    for name in concrete:
        assert str(described[name]).startswith("tcp://127.0.0.1:")
        assert not str(described[name]).endswith(":0")


def test_wildcard_stands_for_the_bind_host(publish_on: PublishOn) -> None:
    described = publish_on("tcp://*:0", "tcp://127.0.0.1:0", bind_host="127.0.0.2").describe()
    assert str(described["endpoint"]).startswith("tcp://127.0.0.2:")
    assert str(described["replay_endpoint"]).startswith("tcp://127.0.0.1:")


@pytest.mark.usefixtures("ipv6")
def test_ipv6_loopback(publish_on: PublishOn, client: Client) -> None:
    publisher = publish_on("tcp://[::1]:0", "tcp://*:0", bind_host="::1")
    described = publisher.describe()
    sub = client(zmq.SUB)
    sub.ipv6 = True
    sub.connect(str(described["endpoint"]))
    assert str(described["replay_endpoint"]).startswith("tcp://[::1]:")
    assert publish_until_received(publisher, sub)


def test_ipc(publish_on: PublishOn, client: Client, tmp_path: Path) -> None:
    publisher = publish_on(f"ipc://{tmp_path}/live", f"ipc://{tmp_path}/replay")
    publisher.publish(events(0))
    dealer = client(zmq.DEALER)
    dealer.connect(str(publisher.describe()["replay_endpoint"]))
    assert len(until_ring_has(dealer, 0)) == 2
    with pytest.raises(ValueError, match="rank 0 only"):
        publish_on(f"ipc://{tmp_path}/other", None, rank=1)


def test_port_that_is_taken_is_an_error_that_names_it(publish_on: PublishOn) -> None:
    taken = str(publish_on().describe()["endpoint"])
    with pytest.raises(OSError, match=f"cannot bind {taken}: Address"):
        publish_on("tcp://*:0", taken)
    with pytest.raises(ValueError, match=r"must be tcp://HOST:PORT"):
        publish_on("tcp://nowhere")


def test_closing_ends_the_threads_and_frees_the_ports(publish_on: PublishOn) -> None:
    before = threading.active_count()
    publisher = publish_on()
    assert threading.active_count() == before + 2
    publisher.close()
    assert threading.active_count() == before
    endpoints = [str(publisher.describe()[name]) for name in ("endpoint", "replay_endpoint")]
    again = publish_on(*(endpoint.replace("127.0.0.1", "*") for endpoint in endpoints))
    assert again.describe() == publisher.describe()


@pytest.fixture(params=["null", "zmq", "zmq without replay"])
def any_publisher(request: pytest.FixtureRequest, publish_on: PublishOn) -> EventPublisher:
    match request.param:
        case "null":
            return NullPublisher()
        case "zmq":
            return publish_on()
        case _:
            return publish_on(replay_endpoint=None)


def test_contract_of_every_publisher(any_publisher: EventPublisher) -> None:
    described = any_publisher.describe()
    assert described["publisher"] in {"null", "zmq"}
    assert described["enable_kv_cache_events"] is (described["publisher"] == "zmq")
    assert {"endpoint", "replay_endpoint"} <= set(described)
    any_publisher.publish([])
    any_publisher.publish(events(0))
    any_publisher.close()
    any_publisher.close()
    assert any_publisher.describe() == described
