"""Whatever the wire does to KV events, what comes out is what went in, in order, or says that it is not."""

from random import Random

import pytest

from kv_events.deliveries import Batch, Delivery, Reset, ResetReason, Synced
from kv_events.events import BlockRemoved
from replay.simulator.agenda import Action, Agenda, Rank
from replay.simulator.feed import REPLAY_BATCHES, EventFeed
from replay.simulator.options import Faults


class Clock(Agenda):
    """Knows what time it is."""

    now = 0.0

    def at(self, time_s: float, rank: Rank, place: int, action: Action) -> None:
        def keeping_time(now: float) -> None:
            self.now = now
            action(now)

        super().at(time_s, rank, place, keeping_time)


class Bench:
    def __init__(self, faults: Faults, seed: int = 0) -> None:
        self.agenda = Clock()
        self.heard: list[tuple[float, Delivery]] = []
        self.feed = EventFeed(0, faults, self.agenda, Random(seed), self.hear)
        self.feed.connect(0.0)

    def hear(self, delivery: Delivery) -> None:
        self.heard.append((self.agenda.now, delivery))

    def publish(self, at_s: float, name: int) -> None:
        self.agenda.at(at_s, Rank.PASS_ENDS, 0, lambda now: self.feed.publish([BlockRemoved((name,))], now))

    def run(self) -> "Bench":
        self.agenda.run()
        return self

    @property
    def names(self) -> list[int]:
        """Of the blocks heard of since the last reset."""
        resets = [place for place, (_, each) in enumerate(self.heard) if isinstance(each, Reset)]
        after = self.heard[resets[-1] :] if resets else self.heard
        return [each.batch.events[0].block_hashes[0] for _, each in after if isinstance(each, Batch)]  # type: ignore[union-attr]


def test_a_perfect_wire_delivers_at_once() -> None:
    bench = Bench(Faults())
    for name in range(5):
        bench.publish(name + 1.0, name)
    bench.run()
    assert isinstance(bench.heard[0][1], Synced)
    assert bench.names == [0, 1, 2, 3, 4]


def test_lag_delays_every_batch() -> None:
    bench = Bench(Faults(lag_s=0.25))
    bench.publish(1.0, 7)
    bench.run()
    assert [at_s for at_s, each in bench.heard if isinstance(each, Batch)] == [0.25 + 1.0]


@pytest.mark.parametrize("lag_s", [0.0, 0.3])
@pytest.mark.parametrize("faults", [{"loss": 0.3}, {"duplication": 0.1}, {"reorder": 0.1}])
def test_what_is_believed_in_the_end_is_complete_and_in_order(faults: dict[str, float], lag_s: float) -> None:
    """From the beginning, or from a reset on. Only the last ones may be unknown: nothing came after to show the gap."""
    for seed in range(5):
        bench = Bench(Faults(lag_s=lag_s, **faults), seed)
        for name in range(200):
            bench.publish(name * 0.1, name)
        heard = bench.run().names
        assert heard == list(range(heard[0], heard[-1] + 1))
        assert heard[-1] > 180


def test_a_replay_makes_good_what_got_lost() -> None:
    bench = Bench(Faults(lag_s=0.3, loss=0.3))
    for name in range(200):
        bench.publish(name * 0.1, name)
    assert bench.run().names[0] == 0
    assert not any(isinstance(each, Reset) for _, each in bench.heard)


def test_loss_costs_time() -> None:
    bench = Bench(Faults(lag_s=0.3, loss=0.5), seed=1)
    for name in range(100):
        bench.publish(float(name), name)
    bench.run()
    delays = [at_s - each.batch.ts_s for at_s, each in bench.heard if isinstance(each, Batch)]
    assert min(delays) == pytest.approx(0.3)
    assert max(delays) >= 1.3 + 0.3, "heard of with the next one, asked for, and answered"


def test_more_lost_than_the_worker_remembers_resets_the_cache() -> None:
    bench = Bench(Faults())
    bench.publish(0.0, 0)
    for name in range(1, REPLAY_BATCHES + 50):
        bench.agenda.at(name, Rank.PASS_ENDS, 0, lambda now, name=name: lose(bench, name, now))  # type: ignore[misc]
    bench.publish(5000.0, 4711)
    bench.run()
    assert [each.reason for _, each in bench.heard if isinstance(each, Reset)] == [ResetReason.OVERRUN]
    assert bench.names[-1] == 4711


def lose(bench: Bench, name: int, now: float) -> None:
    bench.feed._faults = Faults(loss=1.0)
    bench.feed.publish([BlockRemoved((name,))], now)
    bench.feed._faults = Faults()


def test_a_restart_is_found_out_from_the_numbers() -> None:
    bench = Bench(Faults(lag_s=0.1))
    for name in range(3):
        bench.publish(float(name), name)
    bench.agenda.at(3.0, Rank.WORKER_RESTARTS, 0, lambda now: bench.feed.restart())
    bench.publish(4.0, 77)
    bench.run()
    assert [each.reason for _, each in bench.heard if isinstance(each, Reset)] == [ResetReason.RESTART]
    assert bench.names == [77]
