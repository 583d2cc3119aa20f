"""Order and completeness of one source's batches, from live and replayed sequence numbers. No I/O, no clock.

A PUB socket drops what its subscriber cannot take, and sends nothing of what was before. The engine's replay endpoint
sends the last N batches again from a given number on. The tracker puts the two together:

    state      input             condition                      actions                                    next state
    DOWN       connected         with a replay endpoint         AskReplay                                  REPLAYING
               connected         without one                    [Reset RECONNECTED], Synced                LIVE
    LIVE       live              the next                       Deliver                                    LIVE
               live              newer than any live, but old   -  (a replay had it already)               LIVE
               live              a gap, or it went back         AskReplay                                  REPLAYING
               live              the same, without replay       Reset GAP or RESTART, Deliver, Synced      LIVE
    REPLAYING  live              newer than any live            -  (buffered while there is room)          REPLAYING
               live              it went back                   AskReplay, or gives up                     REPLAYING
               replayed          the first, as expected         [Deliver]                                  REPLAYING
               replayed          the first, another batch       Reset RESTART, AskReplay from 0            REPLAYING
               replayed          the first, too high            Reset OVERRUN, Deliver                     REPLAYING
               replayed          the next                       Deliver                                    REPLAYING
               replayed          a hole                         AskReplay, or Reset GAP, Deliver           REPLAYING
               replay_ended      what was asked never came      Reset RESTART, AskReplay from 0            REPLAYING
               replay_ended      all is there                   Deliver the buffered ones, Synced          LIVE
               replay_ended      some are still missing         AskReplay, or gives up                     REPLAYING
               replay_timed_out                                 AskReplay, or gives up                     REPLAYING
    not DOWN   disconnected                                     Lost                                       DOWN

Anything else is ignored. A replay is asked from the last batch delivered, not the one after: if that comes back the
same, it is the same engine, whatever happened in between; if it does not, the engine has restarted. After `max_asks`
replays in a row that brought nothing new, the tracker gives up what is missing: Reset, and on from the oldest batch
that is buffered.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeAlias, TypeVar

from kv_events.deliveries import Lost, Reset, ResetReason, Synced

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deliver(Generic[T]):
    """Hand this batch on."""

    seq: int
    item: T


@dataclass(frozen=True, slots=True)
class AskReplay:
    """Request a replay from `start` on. It replaces the one before: feed no more of that one's answers."""

    start: int


Action: TypeAlias = Deliver[T] | AskReplay | Reset | Synced | Lost


class State(Enum):
    DOWN = auto()
    REPLAYING = auto()
    LIVE = auto()


class SequenceTracker(Generic[T]):
    """Decides what to do with each sequence number of one source; perform the returned actions in order.

    `T` is whatever a batch is to the caller. Two batches of one number are compared with `==` to tell a restart.
    """

    def __init__(self, *, can_replay: bool = True, max_buffered: int = 10_000, max_asks: int = 3) -> None:
        self.state = State.DOWN
        self._can_replay = can_replay
        self._max_buffered = max_buffered
        self._max_asks = max_asks
        self._last: Deliver[T] | None = None  # the last batch delivered of the current generation
        self._newest_live = -1  # of this connection
        self._buffer: deque[Deliver[T]] = deque()  # live during a replay, at most max_buffered
        self._asks = 0  # replays asked since one brought something new
        self._opened = False  # the replay has begun as it should

    def __repr__(self) -> str:
        return f"<SequenceTracker {self.state.name} next={self._next} buffered={len(self._buffer)}>"

    def connected(self) -> list[Action[T]]:
        """Live batches will come from now on."""
        if self.state is not State.DOWN:
            return []
        self._newest_live = -1
        self._asks = 0
        if self._can_replay:
            return [self._ask()]
        known, self._last = self._last, None
        self.state = State.LIVE
        return [Reset(ResetReason.RECONNECTED), Synced()] if known else [Synced()]

    def disconnected(self, reason: str) -> list[Action[T]]:
        """No more batches, live or replayed, until `connected`."""
        if self.state is State.DOWN:
            return []
        self.state = State.DOWN
        self._buffer.clear()
        return [Lost(reason)]

    def live(self, seq: int, item: T) -> list[Action[T]]:
        """A batch came from the PUB socket."""
        went_back = seq <= self._newest_live
        self._newest_live = seq
        batch = Deliver(seq, item)
        match self.state:
            case State.LIVE:
                return self._live_in_order(batch, went_back)
            case State.REPLAYING:
                return self._live_meanwhile(batch, went_back)
            case State.DOWN:
                return []

    def replayed(self, seq: int, item: T) -> list[Action[T]]:
        """A batch came from the replay endpoint."""
        if self.state is not State.REPLAYING:
            return []
        batch = Deliver(seq, item)
        if not self._opened:
            return self._open(batch)
        if seq <= self._next:
            return self._deliver_if_next(batch)
        return [self._ask()] if self._asks < self._max_asks else self._skip_to(batch, ResetReason.GAP)

    def replay_ended(self) -> list[Action[T]]:
        """The replay endpoint says that it has sent all."""
        if self.state is not State.REPLAYING:
            return []
        if self._last and not self._opened:
            return self._restart()
        return self._settle()

    def replay_timed_out(self) -> list[Action[T]]:
        """Nothing came from the replay endpoint for too long."""
        if self.state is not State.REPLAYING:
            return []
        return self._ask_again(ResetReason.UNANSWERED)

    @property
    def _next(self) -> int:
        return self._last.seq + 1 if self._last else 0

    def _live_in_order(self, batch: Deliver[T], went_back: bool) -> list[Action[T]]:
        if not went_back and batch.seq <= self._next:
            return self._deliver_if_next(batch)
        if self._can_replay:
            self._buffer.append(batch)
            return [self._ask()]
        if self._last is None:
            return [self._deliver(batch)]
        return [*self._skip_to(batch, ResetReason.RESTART if went_back else ResetReason.GAP), Synced()]

    def _live_meanwhile(self, batch: Deliver[T], went_back: bool) -> list[Action[T]]:
        if went_back:  # a restart, perhaps: the buffered ones may be of the old engine, and a replay has them if not
            self._buffer.clear()
            self._buffer.append(batch)
            return self._ask_again(ResetReason.GAP)
        if len(self._buffer) < self._max_buffered:  # else it is missing when the replay ends, and asked for then
            self._buffer.append(batch)
        return []

    def _open(self, batch: Deliver[T]) -> list[Action[T]]:
        """The first batch of a replay: the one delivered last, or number 0 when there is none."""
        start = self._last.seq if self._last else 0
        if batch.seq < start:
            return []
        self._opened = True
        if batch.seq > start:
            return self._skip_to(batch, ResetReason.OVERRUN)
        if self._last is None:
            return [self._deliver(batch)]
        return [] if batch == self._last else self._restart()

    def _settle(self) -> list[Action[T]]:
        """After a replay: catch up with what came live meanwhile."""
        actions: list[Action[T]] = []
        while self._buffer and self._buffer[0].seq <= self._next:
            actions += self._deliver_if_next(self._buffer.popleft())
        if self._newest_live >= self._next:
            return actions + self._ask_again(ResetReason.GAP)
        self.state = State.LIVE
        self._asks = 0
        return [*actions, Synced()]

    def _ask(self) -> AskReplay:
        self.state = State.REPLAYING
        self._asks += 1
        self._opened = False
        return AskReplay(self._last.seq if self._last else 0)

    def _ask_again(self, reason: ResetReason) -> list[Action[T]]:
        return [self._ask()] if self._asks < self._max_asks else self._give_up(reason)

    def _give_up(self, reason: ResetReason) -> list[Action[T]]:
        self._newest_live = self._buffer[-1].seq if self._buffer else -1
        if self._buffer:
            return self._skip_to(self._buffer.popleft(), reason) + self._settle()
        self._last = None
        return [Reset(reason), *self._settle()]

    def _restart(self) -> list[Action[T]]:
        """Another engine is there now. What is buffered may not be its own; a replay brings all that is."""
        self._last = None
        self._buffer.clear()
        self._newest_live = -1
        self._asks = 0
        return [Reset(ResetReason.RESTART), self._ask()]

    def _skip_to(self, batch: Deliver[T], reason: ResetReason) -> list[Action[T]]:
        return [Reset(reason), self._deliver(batch)]

    def _deliver_if_next(self, batch: Deliver[T]) -> list[Action[T]]:
        return [self._deliver(batch)] if batch.seq == self._next else []

    def _deliver(self, batch: Deliver[T]) -> Deliver[T]:
        self._last = batch
        self._asks = 0
        return batch
