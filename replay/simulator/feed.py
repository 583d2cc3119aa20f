"""A worker's KV events on their way to the router, through the real sequence tracker and over a faulty wire."""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from kv_events.deliveries import Batch, Delivery
from kv_events.events import EventBatch, KvEvent
from kv_events.tracker import Action, AskReplay, Deliver, SequenceTracker
from replay.simulator.agenda import Agenda, Rank
from replay.simulator.options import Faults

REPLAY_BATCHES = 1000
"""The last batches that a worker can send again."""


class EventFeed:
    """What `publish` and `restart` say comes out at `deliver` as far and as late as the faults let it.

    A replay is asked for and answered in one `lag_s`, and nothing of it is lost.
    """

    def __init__(
        self, place: int, faults: Faults, agenda: Agenda, rng: Random, deliver: Callable[[Delivery], None]
    ) -> None:
        self._place, self._faults, self._agenda, self._rng, self._deliver = place, faults, agenda, rng, deliver
        self._tracker: SequenceTracker[EventBatch] = SequenceTracker()
        self._ring: deque[tuple[int, EventBatch]] = deque(maxlen=REPLAY_BATCHES)
        self._next_seq = 0
        self._held_back: tuple[int, EventBatch] | None = None
        self._asked = 0  # replays so far: the last one is the only one whose answer counts

    def connect(self, now: float) -> None:
        self._act(self._tracker.connected(), now)

    def publish(self, events: Sequence[KvEvent], now: float) -> None:
        if not events:
            return
        numbered = self._next_seq, EventBatch(now, tuple(events), 0)
        self._next_seq += 1
        self._ring.append(numbered)
        if self._happens(self._faults.loss):
            return
        if self._held_back is None and self._happens(self._faults.reorder):
            self._held_back = numbered
            return
        sent = [numbered] * (2 if self._happens(self._faults.duplication) else 1)
        if self._held_back is not None:
            sent.append(self._held_back)
            self._held_back = None
        for each in sent:
            self._send(each, now)

    def restart(self) -> None:
        """The engine begins again with number 0, and with nothing to replay."""
        self._next_seq = 0
        self._ring.clear()

    def _happens(self, share: float) -> bool:
        return share > 0 and self._rng.random() < share

    def _send(self, numbered: tuple[int, EventBatch], now: float) -> None:
        if not self._faults.lag_s:
            self._act(self._tracker.live(*numbered), now)
            return
        arrival_s = now + self._faults.lag_s
        self._agenda.at(
            arrival_s, Rank.NEWS_COMES, self._place, lambda at_s: self._act(self._tracker.live(*numbered), at_s)
        )

    def _act(self, actions: Sequence[Action[EventBatch]], now: float) -> None:
        for action in actions:
            if isinstance(action, Deliver):
                self._deliver(Batch(action.seq, action.item))
            elif isinstance(action, AskReplay):
                self._ask(action.start, now)
            else:
                self._deliver(action)

    def _ask(self, start: int, now: float) -> None:
        self._asked += 1
        asked, answered_s = self._asked, now + self._faults.lag_s
        self._agenda.at(answered_s, Rank.NEWS_COMES, self._place, lambda at_s: self._answer(asked, start, at_s))

    def _answer(self, asked: int, start: int, now: float) -> None:
        for seq, batch in list(self._ring):
            if asked != self._asked:
                return
            if seq >= start:
                self._act(self._tracker.replayed(seq, batch), now)
        if asked == self._asked:
            self._act(self._tracker.replay_ended(), now)
