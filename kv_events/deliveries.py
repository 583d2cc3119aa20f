"""What following one event source yields, in order."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from kv_events.events import EventBatch


class ResetReason(StrEnum):
    RESTART = "restart"  # the engine's sequence began again
    OVERRUN = "overrun"  # batches are older than the engine's replay buffer
    GAP = "gap"  # batches are missing that no replay brings back
    UNANSWERED = "unanswered"  # the replay endpoint did not answer, or never finished
    UNDECODABLE = "undecodable"  # a batch could not be read
    RECONNECTED = "reconnected"  # the connection was lost and there is no replay to tell what happened meanwhile


class Batch(NamedTuple):
    """The next batch; nothing is missing between it and the one before, or a Reset stood between them."""

    seq: int
    batch: EventBatch


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget every block of this source: some news of them is lost for good. What follows builds on nothing."""

    reason: ResetReason


@dataclass(frozen=True, slots=True)
class Synced:
    """All that can be known of this source's cache is known now."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection is gone: what was known may be stale until the next Synced."""

    reason: str


Delivery: TypeAlias = Batch | Reset | Synced | Lost
