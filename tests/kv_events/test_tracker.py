"""The tracker: its table row by row, then a simulated engine behind channels that lose, repeat and reorder."""

from collections import deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kv_events.deliveries import Lost, Reset, ResetReason, Synced
from kv_events.tracker import Action, AskReplay, Deliver, SequenceTracker, State

GAP, OVERRUN, RESTART = Reset(ResetReason.GAP), Reset(ResetReason.OVERRUN), Reset(ResetReason.RESTART)
UNANSWERED, RECONNECTED = Reset(ResetReason.UNANSWERED), Reset(ResetReason.RECONNECTED)


def batches(*seqs: int) -> list[Action[str]]:
    return [Deliver(seq, f"batch {seq}") for seq in seqs]


class Driver:
    """Feeds batches named by their number."""

    def __init__(self, **options: Any) -> None:
        self.tracker = SequenceTracker[str](**options)

    def live(self, *seqs: int) -> list[Action[str]]:
        return [action for seq in seqs for action in self.tracker.live(seq, f"batch {seq}")]

    def replay(self, *seqs: int) -> list[Action[str]]:
        return [action for seq in seqs for action in self.tracker.replayed(seq, f"batch {seq}")]

    def end(self) -> list[Action[str]]:
        return self.tracker.replay_ended()


def following(*seqs: int, **options: Any) -> Driver:
    """A tracker that has these batches and is LIVE."""
    driver = Driver(**options)
    driver.tracker.connected()
    driver.replay(*seqs)
    driver.end()
    assert driver.tracker.state is State.LIVE
    return driver


def test_connection_begins_with_a_replay_from_the_start() -> None:
    driver = Driver()
    assert driver.tracker.connected() == [AskReplay(0)]
    assert driver.tracker.connected() == []
    assert driver.replay(0, 1) == batches(0, 1)
    assert driver.end() == [Synced()]
    assert driver.live(2, 3) == batches(2, 3)


def test_engine_that_has_published_nothing_is_synced() -> None:
    driver = Driver()
    driver.tracker.connected()
    assert driver.end() == [Synced()]
    assert driver.live(0) == batches(0)


def test_live_batches_wait_for_the_replay_and_come_once() -> None:
    driver = Driver()
    driver.tracker.connected()
    assert driver.live(1, 2, 3) == []
    assert driver.replay(0, 1, 2) == batches(0, 1, 2)
    assert driver.end() == [*batches(3), Synced()]


def test_live_batches_that_the_replay_had_are_dropped_in_silence() -> None:
    driver = following(0, 1, 2)
    assert driver.live(1, 2, 3) == batches(3)


def test_gap_is_filled_by_a_replay_from_the_last_batch() -> None:
    driver = following(0, 1)
    assert driver.live(4) == [AskReplay(1)]
    assert driver.live(5) == []
    assert driver.replay(1, 2, 3, 4) == batches(2, 3, 4)
    assert driver.end() == [*batches(5), Synced()]


def test_replay_that_starts_lower_than_asked_is_fine() -> None:
    driver = following(0, 1, 2)
    assert driver.live(4) == [AskReplay(2)]
    assert driver.replay(0, 1, 2, 3) == batches(3)


def test_replay_of_an_overrun_ring_resets() -> None:
    driver = Driver()
    driver.tracker.connected()
    assert driver.replay(4, 5) == [OVERRUN, *batches(4, 5)]
    assert driver.end() == [Synced()]


def test_ring_that_overran_during_a_gap_resets() -> None:
    driver = following(0, 1)
    assert driver.live(9) == [AskReplay(1)]
    assert driver.replay(5, 6, 7, 8, 9) == [OVERRUN, *batches(5, 6, 7, 8, 9)]
    assert driver.end() == [Synced()]


def test_sequence_that_went_back_is_a_restart_when_the_engine_has_another_past() -> None:
    driver = following(0, 1, 2)
    driver.live(3)
    assert driver.live(0) == [AskReplay(3)]
    assert driver.end() == [RESTART, AskReplay(0)], "an engine that is not there yet has nothing from 3 on"
    assert driver.replay(0, 1) == batches(0, 1)
    assert driver.end() == [Synced()]
    assert driver.live(1, 2) == batches(2)


def test_sequence_that_went_back_is_a_repetition_when_the_past_is_the_same() -> None:
    driver = following(0, 1, 2)
    driver.live(3)
    assert driver.live(3) == [AskReplay(3)]
    assert driver.replay(3) == []
    assert driver.end() == [Synced()]


def test_restarted_engine_that_is_already_further_is_told_by_its_batch() -> None:
    driver = following(0, 1)
    assert driver.live(5) == [AskReplay(1)]
    assert driver.tracker.replayed(1, "another batch 1") == [RESTART, AskReplay(0)]


def test_nothing_buffered_outlives_a_restart() -> None:
    driver = following(0, 1, 2)
    assert driver.live(4, 5) == [AskReplay(2)]
    assert driver.end() == [RESTART, AskReplay(0)]
    assert driver.replay(0) == batches(0)
    assert driver.end() == [Synced()]
    assert driver.live(1) == batches(1)


def test_sequence_that_went_back_during_a_replay_is_verified_once() -> None:
    driver = following(0, 1, 2)
    assert driver.live(4, 5, 0) == [AskReplay(2), AskReplay(2)]
    assert driver.live(1) == []
    assert driver.end() == [RESTART, AskReplay(0)]


def test_what_waited_when_the_sequence_went_back_is_left_to_the_replay() -> None:
    driver = following(0, 1)
    assert driver.live(4, 5, 2) == [AskReplay(1), AskReplay(1)]
    assert driver.replay(1, 2) == batches(2)
    assert driver.end() == [Synced()]
    assert repr(driver.tracker) == "<SequenceTracker LIVE next=3 buffered=0>"


def test_lost_connection_is_told_and_the_next_one_verified() -> None:
    driver = following(0, 1)
    assert driver.tracker.disconnected("gone") == [Lost("gone")]
    assert driver.tracker.disconnected("gone") == []
    assert driver.live(2) == driver.replay(2) == driver.end() == driver.tracker.replay_timed_out() == []
    assert driver.tracker.connected() == [AskReplay(1)]
    assert driver.replay(1, 2) == batches(2)
    assert driver.end() == [Synced()]


def test_restart_behind_a_lost_connection_resets() -> None:
    driver = following(0, 1)
    driver.tracker.disconnected("gone")
    driver.tracker.connected()
    assert driver.end() == [RESTART, AskReplay(0)]


def test_hole_in_a_replay_is_asked_for_again_then_given_up() -> None:
    driver = following(0, 1, max_asks=3)
    assert driver.live(4) == [AskReplay(1)]
    assert driver.replay(1, 3) == [AskReplay(1)]
    assert driver.replay(1, 3) == [AskReplay(1)]
    assert driver.replay(1, 3, 4) == [GAP, *batches(3, 4)]
    assert driver.end() == [Synced()]


def test_lossy_replay_that_gets_further_each_time_is_no_loss() -> None:
    driver = Driver(max_asks=2)
    driver.tracker.connected()
    for start in range(0, 10, 2):
        got = driver.replay(*([start - 1] if start else []), start, start + 1, start + 3)
        assert got == [*batches(start, start + 1), AskReplay(start + 1)]


def test_batches_missing_at_the_end_of_a_replay_are_asked_for_again_then_given_up() -> None:
    driver = following(0, 1, max_asks=2)
    assert driver.live(3, 4, 6) == [AskReplay(1)]
    driver.replay(1)
    assert driver.end() == [AskReplay(1)]
    driver.replay(1)
    assert driver.end() == [GAP, *batches(3, 4), AskReplay(4)]


def test_silent_replay_is_asked_for_again_then_given_up() -> None:
    driver = Driver(max_asks=2)
    driver.tracker.connected()
    assert driver.live(7, 8) == []
    assert driver.tracker.replay_timed_out() == [AskReplay(0)]
    assert driver.tracker.replay_timed_out() == [UNANSWERED, *batches(7, 8), Synced()]
    assert driver.live(9) == batches(9)


def test_replay_without_an_end_is_given_up_even_when_it_had_all() -> None:
    driver = Driver(max_asks=2)
    driver.tracker.connected()
    assert driver.replay(0, 1) == batches(0, 1)
    assert driver.tracker.replay_timed_out() == [AskReplay(1)]
    assert driver.tracker.replay_timed_out() == [AskReplay(1)]
    assert driver.tracker.replay_timed_out() == [UNANSWERED, Synced()]
    assert driver.live(2) == [AskReplay(0)], "nothing is known any more"


def test_full_buffer_costs_another_replay_and_no_batch() -> None:
    driver = Driver(max_buffered=2)
    driver.tracker.connected()
    assert driver.live(1, 2, 3, 4) == []
    driver.replay(0)
    assert driver.end() == [*batches(1, 2), AskReplay(2)]
    assert driver.replay(2, 3, 4) == batches(3, 4)
    assert driver.end() == [Synced()]


def test_without_replay_the_first_live_batch_is_where_it_begins() -> None:
    driver = Driver(can_replay=False)
    assert driver.tracker.connected() == [Synced()]
    assert driver.live(7, 8) == batches(7, 8)
    assert driver.live(11) == [GAP, *batches(11), Synced()]
    assert driver.live(0) == [RESTART, *batches(0), Synced()]
    assert driver.tracker.disconnected("gone") == [Lost("gone")]
    assert driver.tracker.connected() == [RECONNECTED, Synced()]
    assert driver.live(5) == batches(5)


def test_state_shows() -> None:
    assert repr(following(0, 1).tracker) == "<SequenceTracker LIVE next=2 buffered=0>"


class Stream:
    """What was delivered since the last Reset: no gap, no step back; number 0 first unless after a Reset."""

    def __init__(self) -> None:
        self.last: Deliver[Any] | None = Deliver(-1, None)
        self.synced = False

    def take(self, action: Action[Any]) -> None:
        if isinstance(action, Reset):
            self.last = None
        elif isinstance(action, Deliver):
            assert self.last is None or action.seq == self.last.seq + 1
            self.last = action
        self.synced = isinstance(action, Synced) or (self.synced and isinstance(action, Deliver))


@given(st.lists(st.integers(0, 12)))
def test_without_replay_no_order_of_batches_makes_a_gap(seqs: list[int]) -> None:
    driver = Driver(can_replay=False)
    driver.tracker.connected()
    actions = [GAP, *driver.live(*seqs)]  # it may begin anywhere, as after a reset
    stream = Stream()
    for action in actions:
        stream.take(action)
    assert [a.seq for a in actions if isinstance(a, Deliver)] == seqs


class Engine(RuleBasedStateMachine):
    """An engine with a ring of six batches, a lossy live channel and a lossy replay channel.

    A batch is (generation, number). What the tracker is given passes through `perform`, which checks the stream.
    """

    RING = 6

    @initialize()
    def start(self) -> None:
        self.tracker = SequenceTracker[tuple[int, int]](max_buffered=4, max_asks=2)
        self.generation = self.next_seq = 0
        self.ring: deque[int] = deque(maxlen=self.RING)
        self.live: deque[int] = deque()
        self.replies: deque[int | None] = deque()  # None is the end
        self.stream = Stream()
        self.perform(self.tracker.connected())

    @invariant()
    def nothing_waits_when_live(self) -> None:
        assert self.tracker.state is State.REPLAYING or "buffered=0" in repr(self.tracker)

    def perform(self, actions: list[Action[tuple[int, int]]]) -> None:
        for action in actions:
            if isinstance(action, AskReplay):
                self.replies = deque([*(seq for seq in self.ring if seq >= action.start), None])
            before = self.stream.last
            self.stream.take(action)
            if isinstance(action, Deliver) and before and before.item:
                assert action.item[0] == before.item[0], "two lives of an engine without a reset between"

    @rule(lost=st.booleans(), twice=st.booleans())
    def publish(self, lost: bool, twice: bool) -> None:
        self.ring.append(self.next_seq)
        self.live.extend([] if lost else [self.next_seq] * (1 + twice))
        self.next_seq += 1

    @rule()
    def drop_before_publishing(self) -> None:
        self.next_seq += 1

    @rule()
    def swap_live(self) -> None:
        self.live.rotate()

    @rule()
    def receive_live(self) -> None:
        if self.live:
            seq = self.live.popleft()
            self.perform(self.tracker.live(seq, (self.generation, seq)))

    @rule(lost=st.booleans())
    def receive_reply(self, lost: bool) -> None:
        if self.replies:
            seq = self.replies.popleft()
            if not lost:
                self.answer(seq)

    def answer(self, seq: int | None) -> None:
        self.perform(self.tracker.replay_ended() if seq is None else self.tracker.replayed(seq, (self.generation, seq)))

    @precondition(lambda self: not self.replies)
    @rule()
    def time_out(self) -> None:
        self.perform(self.tracker.replay_timed_out())

    @rule(restarts=st.booleans())
    def reconnect(self, restarts: bool) -> None:
        self.live.clear()
        self.replies.clear()
        self.perform(self.tracker.disconnected("gone"))
        if restarts:
            self.generation += 1
            self.next_seq = 0
            self.ring.clear()
        self.perform(self.tracker.connected())

    @rule()
    def calm_down(self) -> None:
        """When nothing is lost any more, all that the ring holds is known, and the tracker says so."""
        for _ in range(10):
            while self.live or self.replies:
                self.receive_live()
                if self.replies:
                    self.answer(self.replies.popleft())
            self.time_out()
            self.publish(lost=False, twice=False)
        self.receive_live()
        assert self.tracker.state is State.LIVE
        assert self.stream.synced
        assert self.stream.last == Deliver(self.next_seq - 1, (self.generation, self.next_seq - 1))


Engine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestEngine = Engine.TestCase
