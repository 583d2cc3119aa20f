"""The subscriber on real sockets: against our publisher, and an engine that plays a captured or a faulty one."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from kv_events.codec import decode_batch
from kv_events.deliveries import Batch, Lost, Reset, ResetReason, Synced
from kv_events.events import BlockRemoved, KvEvent
from kv_events.publisher import ZmqPublisher
from kv_events.sources import EventSource, parse_event_sources
from kv_events.subscriber import MESSAGES_PER_TURN, Subscriber, Switchboard

PublishOn = Callable[..., ZmqPublisher]


def events(number: int) -> list[KvEvent]:
    return [BlockRemoved((number,))]


def publish(publisher: ZmqPublisher, numbers: range) -> None:
    for number in numbers:
        publisher.publish(events(number))


async def published(follow: Any, publisher: ZmqPublisher, numbers: range) -> None:
    """Publishes, and returns when the last batch is out: publishers have a thread of their own."""
    witness = follow(source_of(publisher))
    publish(publisher, numbers)
    await witness.until(lambda: numbers[-1] in witness.seqs[-1:])


async def publish_until(publisher: ZmqPublisher, condition: Callable[[], bool]) -> None:
    """An engine that connects to us takes a moment, and what it publishes before shows with the next batch."""
    async with asyncio.timeout(20):
        while not condition():
            publish(publisher, range(1))
            await asyncio.sleep(0.01)


def source_of(publisher: ZmqPublisher) -> EventSource:
    [source] = parse_event_sources({"0": publisher.describe()}, "127.0.0.1")
    return source


def restarted(publisher: ZmqPublisher, publish_on: PublishOn) -> ZmqPublisher:
    """A new publisher in the place of one that is closed."""
    described = publisher.describe()
    endpoints = [str(described[name]).replace("127.0.0.1", "*") for name in ("endpoint", "replay_endpoint")]
    return publish_on(*endpoints, topic=described["topic"])


async def test_late_subscriber_gets_everything_from_an_idle_engine(follow: Any, publish_on: PublishOn) -> None:
    publisher = publish_on(topic="kv")
    publish(publisher, range(2500))
    recorder = follow(source_of(publisher))
    await recorder.until(lambda: len(recorder.seqs) >= 2500 and recorder.count(Synced) == 1)
    publish(publisher, range(2500, 2600))
    await recorder.until(lambda: len(recorder.seqs) >= 2600)
    assert recorder.seqs == list(range(2600))
    assert [d.batch.events for d in recorder.deliveries if isinstance(d, Batch)] == [
        tuple(events(n)) for n in range(2600)
    ]
    assert set(map(type, recorder.turns)) == {Synced}


async def test_whole_life_of_a_captured_engine(follow: Any, engine: Any) -> None:
    """Half by replay, half live, as vLLM 0.32 sends them."""
    later = {seq: engine.ring.pop(seq) for seq in range(15, 31)}
    recorder = follow(engine.source())
    await engine.subscribed()
    await recorder.until_synced()
    engine.ring |= later
    await engine.send(*later)
    await recorder.until(lambda: len(recorder.seqs) == 31)
    assert [d.batch for d in recorder.deliveries if isinstance(d, Batch)] == [
        decode_batch(engine.ring[seq]) for seq in range(31)
    ]
    assert engine.requests == [0]
    assert recorder.turns == [Synced()]


@pytest.mark.usefixtures("ipv6")
async def test_source_on_ipv6(follow: Any, publish_on: PublishOn) -> None:
    publisher = publish_on(bind_host="::1")
    publish(publisher, range(3))
    recorder = follow(source_of(publisher))
    await recorder.until(lambda: recorder.seqs == [0, 1, 2])


async def test_gap_is_filled(follow: Any, engine: Any) -> None:
    recorder = follow(engine.source())
    late = {seq: engine.ring.pop(seq) for seq in range(10, 31)}
    await engine.subscribed()
    await recorder.until_synced()
    engine.ring |= late
    await engine.send(10, 11, 15, 16)
    await recorder.until_synced(2)
    assert recorder.seqs == list(range(31))
    assert engine.requests == [0, 11]
    assert recorder.turns == [Synced(), Synced()]


async def test_old_replay_frames_without_a_topic_are_read(follow: Any, engine: Any) -> None:
    engine.scripts = [lambda start: [frames[1:] for frames in engine.whole(start)[:-1]] + [(b"\xff" * 8, b"")]]
    recorder = follow(engine.source())
    await recorder.until_synced()
    assert recorder.seqs == list(range(31))


async def test_restart_on_the_same_port_resets(follow: Any, publish_on: PublishOn) -> None:
    first = publish_on()
    await published(follow, first, range(5))
    recorder = follow(source_of(first))
    await recorder.until_synced()
    first.close()
    await recorder.until_lost()
    publish(restarted(first, publish_on), range(100, 103))
    await recorder.until(lambda: recorder.since_reset == [0, 1, 2] and recorder.count(Synced) == 2)
    assert recorder.turns == [
        Synced(),
        Lost("connection closed"),
        Reset(ResetReason.RESTART),
        Synced(),
    ]


async def test_restart_that_is_idle_resets_too(follow: Any, publish_on: PublishOn) -> None:
    first = publish_on()
    await published(follow, first, range(5))
    recorder = follow(source_of(first))
    await recorder.until_synced()
    first.close()
    restarted(first, publish_on)
    await recorder.until_synced(2)
    assert recorder.turns[2] == Reset(ResetReason.RESTART)


async def test_overrun_ring_resets(follow: Any, publish_on: PublishOn) -> None:
    publisher = publish_on(buffer_steps=5)
    await published(follow, publisher, range(9))
    recorder = follow(source_of(publisher))
    await recorder.until(lambda: 8 in recorder.seqs and recorder.count(Synced) == 1)
    assert recorder.deliveries[0] == Reset(ResetReason.OVERRUN)
    assert recorder.since_reset == [4, 5, 6, 7, 8]


async def test_lossy_replay_is_asked_for_until_it_is_whole(follow: Any, engine: Any) -> None:
    def holes(*missing: int) -> Callable[[int], list[tuple[bytes, ...]]]:
        return lambda start: [
            frames for frames in engine.whole(start) if int.from_bytes(frames[1], "big") not in missing
        ]

    engine.scripts = [holes(7, 12, 20), holes(12, 20), holes(20)]
    recorder = follow(engine.source())
    await recorder.until_synced()
    assert recorder.seqs == list(range(31))
    assert engine.requests == [0, 6, 11, 19]
    assert recorder.turns == [Synced()]


async def test_replay_without_an_end_times_out_and_is_asked_for_again(follow: Any, engine: Any) -> None:
    engine.scripts = [lambda start: engine.whole(start)[:10]]
    recorder = follow(engine.source(), replay_timeout_s=0.05)
    await recorder.until_synced()
    assert recorder.seqs == list(range(31))
    assert engine.requests[:2] == [0, 9]
    assert recorder.turns == [Synced()]


async def test_replay_that_takes_long_but_is_never_silent_is_left_alone(follow: Any, engine: Any) -> None:
    engine.scripts = [lambda start: []]
    recorder = follow(engine.source(), replay_timeout_s=1.0)
    await engine.asked(1)
    for part in (slice(0, 10), slice(10, 20), slice(20, 30), slice(30, 32)):
        await asyncio.sleep(0.4)
        await engine.answer(0, engine.whole(0)[part])
    await recorder.until_synced()
    assert engine.requests == [0]


async def test_replay_that_never_answers_is_given_up(follow: Any, engine: Any) -> None:
    engine.scripts = [lambda start: []] * 3
    recorder = follow(engine.source(), replay_timeout_s=0.05)
    await engine.subscribed()
    await engine.send(20, 21)
    await recorder.until_synced()
    assert recorder.turns == [Reset(ResetReason.UNANSWERED), Synced()]
    await engine.send(22)
    await recorder.until(lambda: recorder.since_reset == [20, 21, 22])


async def test_late_answer_to_an_earlier_request_is_not_heard(follow: Any, engine: Any) -> None:
    """It would be taken for the end of the replay that runs, which has brought nothing yet."""
    engine.scripts = [lambda start: engine.whole(start)[:5], lambda start: []]
    recorder = follow(engine.source(), replay_timeout_s=0.5)
    await engine.asked(2)
    await engine.answer(0, [engine.END])
    await engine.answer(1, engine.whole(4))
    await recorder.until_synced()
    assert recorder.seqs == list(range(31))


async def test_source_without_replay(follow: Any, engine: Any) -> None:
    recorder = follow(EventSource(engine.endpoint, topic="kv-events"))
    await engine.subscribed()
    await recorder.until_synced()
    await engine.send(3, 4, 7)
    await recorder.until(lambda: 7 in recorder.seqs)
    assert recorder.seqs == [3, 4, 7]
    assert recorder.turns == [Synced(), Reset(ResetReason.GAP), Synced()]


async def test_batch_that_cannot_be_read_resets(follow: Any, engine: Any) -> None:
    engine.ring[3] = b"\xc1"
    recorder = follow(engine.source())
    await recorder.until_synced()
    assert recorder.since_reset == list(range(4, 31))
    assert recorder.turns == [Reset(ResetReason.UNDECODABLE), Synced()]
    assert follow.subscribers[0].undecodable_batches == 1


async def test_frames_that_are_no_message_are_ignored(follow: Any, engine: Any) -> None:
    late = engine.ring.pop(30)
    recorder = follow(engine.source())
    await engine.subscribed()
    await recorder.until_synced()
    await engine.pub.send_multipart((engine.topic,))
    await engine.pub.send_multipart((engine.topic, b"30", late))
    engine.ring[30] = late
    await engine.send(30)
    await recorder.until(lambda: 30 in recorder.seqs)
    assert engine.requests == [0]


async def test_only_the_exact_topic_counts(follow: Any, engine: Any) -> None:
    late = engine.ring.pop(30)
    recorder = follow(engine.source())
    await engine.subscribed()
    await recorder.until_synced()
    await engine.pub.send_multipart((engine.topic + b"-of-another", (40).to_bytes(8, "big"), late))
    engine.ring[30] = late
    await engine.send(30)
    await recorder.until(lambda: 30 in recorder.seqs)
    assert engine.requests == [0]


async def test_engine_that_is_not_there_yet_is_waited_for(follow: Any, publish_on: PublishOn) -> None:
    places = publish_on()
    places.close()
    recorder = follow(source_of(places))
    publish(restarted(places, publish_on), range(3))
    await recorder.until(lambda: recorder.seqs == [0, 1, 2] and recorder.count(Synced) > 0)
    assert set(map(type, recorder.turns)) == {Synced}


async def test_engines_that_connect_to_us_share_an_endpoint(follow: Any, publish_on: PublishOn, free_port: int) -> None:
    shared = f"tcp://127.0.0.1:{free_port}"
    publishers = [publish_on(shared, topic=topic) for topic in ("kv", "kv-b")]
    recorders = [
        follow(EventSource(f"tcp://*:{free_port}", str(p.describe()["replay_endpoint"]), str(p.describe()["topic"])))
        for p in publishers
    ]
    for recorder in recorders:
        await recorder.until_synced()
    for publisher, recorder in zip(publishers, recorders, strict=True):
        await publish_until(publisher, lambda: len(recorder.seqs) >= 20)  # noqa: B023
    for recorder in recorders:
        assert recorder.seqs == list(range(len(recorder.seqs)))
        assert set(map(type, recorder.turns)) == {Synced}


async def test_restart_of_an_engine_that_connects_to_us(follow: Any, publish_on: PublishOn, free_port: int) -> None:
    shared = f"tcp://127.0.0.1:{free_port}"
    first, other = publish_on(shared, topic="a"), publish_on(shared, topic="b")
    replay_endpoint = str(first.describe()["replay_endpoint"])
    recorder = follow(EventSource(f"tcp://*:{free_port}", replay_endpoint, "a"))
    neighbour = follow(EventSource(f"tcp://*:{free_port}", str(other.describe()["replay_endpoint"]), "b"))
    await recorder.until_synced()
    await neighbour.until_synced()
    await publish_until(first, lambda: len(recorder.seqs) >= 5)
    synced = recorder.count(Synced)
    first.close()
    await recorder.until_lost()
    again = publish_on(shared, replay_endpoint.replace("127.0.0.1", "*"), topic="a")
    await publish_until(again, lambda: recorder.count(Synced) > synced and len(recorder.since_reset) >= 2)
    assert recorder.since_reset == list(range(len(recorder.since_reset)))
    assert recorder.turns[synced + 1 : synced + 3] == [Reset(ResetReason.RESTART), Synced()]
    assert neighbour.turns == [Synced()]


async def test_endpoint_that_cannot_be_bound_is_an_error_that_names_it() -> None:
    switchboard = Switchboard()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot bind tcp://127.0.0.1:{port}: Address"):
            Subscriber(EventSource(f"tcp://*:{port}"), print, switchboard).start()
    await switchboard.close()


async def reached(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0.01)


async def most_in_a_turn(recorder: Any, deliveries: int) -> int:
    """How many deliveries came between two turns of the event loop, until there are so many in all."""
    most = seen = 0
    async with asyncio.timeout(20):
        while len(recorder.deliveries) < deliveries:
            await asyncio.sleep(0)
            most, seen = max(most, len(recorder.deliveries) - seen), len(recorder.deliveries)
    return most


async def test_flood_leaves_turns_for_others(follow: Any, publish_on: PublishOn) -> None:
    publisher = publish_on(buffer_steps=20_000)
    await published(follow, publisher, range(20_000))
    recorder = follow(source_of(publisher))
    assert 0 < await most_in_a_turn(recorder, 20_001) <= 2 * MESSAGES_PER_TURN
    assert recorder.seqs == list(range(20_000))


async def test_what_was_buffered_during_a_replay_leaves_turns_for_others(follow: Any, engine: Any) -> None:
    engine.ring |= dict.fromkeys(range(31, 2000), engine.ring[0])
    engine.scripts = [lambda start: []]
    recorder = follow(engine.source())
    await engine.subscribed()
    await engine.send(*engine.ring)
    await reached(lambda: "buffered=2000" in repr(follow.subscribers[0]))
    await engine.answer(0, [engine.END])
    assert 0 < await most_in_a_turn(recorder, 2001) <= 2 * MESSAGES_PER_TURN
    assert recorder.seqs == list(range(2000))


async def test_failure_of_the_consumer_is_reported(engine: Any) -> None:
    def fail(delivery: object) -> None:
        raise RuntimeError("consumer")

    reported: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.set_result(context))
    switchboard = Switchboard()
    subscriber = Subscriber(engine.source(), fail, switchboard)
    subscriber.start()
    async with asyncio.timeout(20):
        assert str((await reported)["exception"]) == "consumer"
    await subscriber.close()
    await switchboard.close()


async def test_nothing_is_delivered_after_close(follow: Any, publish_on: PublishOn) -> None:
    publisher = publish_on()
    recorder = follow(source_of(publisher))
    await recorder.until_synced()
    await follow.subscribers[0].close()
    other = follow(source_of(publisher))
    await other.until_synced()
    publish(publisher, range(1))
    await other.until(lambda: other.seqs == [0])
    assert recorder.deliveries == [Synced()]


async def test_subscriber_that_was_never_started_closes() -> None:
    switchboard = Switchboard()
    subscriber = Subscriber(EventSource("tcp://127.0.0.1:5557"), print, switchboard)
    assert repr(subscriber) == "<Subscriber tcp://127.0.0.1:5557 rank=0 <SequenceTracker DOWN next=0 buffered=0>>"
    await subscriber.close()
    await switchboard.close()
