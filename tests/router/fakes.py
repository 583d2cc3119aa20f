"""Engines that exist only as the events they would send, and requests for them."""

from dataclasses import dataclass, field

from kv_events.deliveries import Batch, Reset, ResetReason, Synced
from kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch, KvEvent
from router.core import RouterCore
from router.records import RouteRequest

SIZE = 4


@dataclass
class FakeEngine:
    """Says what an engine with these prompts in its cache would say."""

    core: RouterCore
    worker: str
    rank: int = 0
    seq: int = 0
    size: int = SIZE
    names: dict[tuple[int, ...], int] = field(default_factory=dict)

    def say(self, *events: KvEvent) -> None:
        self.core.on_kv_events(self.worker, self.rank, Batch(self.seq, EventBatch(0.0, events, self.rank)))
        self.seq += 1

    def sync(self) -> None:
        self.core.on_kv_events(self.worker, self.rank, Synced())

    def restart(self) -> None:
        self.core.on_kv_events(self.worker, self.rank, Reset(ResetReason.RESTART))

    def cache(self, tokens: list[int], lora_name: str | None = None, salt: str | None = None) -> None:
        parent = None
        for end in range(self.size, len(tokens) + 1, self.size):
            name = self.names.setdefault(tuple(tokens[:end]), len(self.names) + 1000 * (self.rank + 1))
            block = tuple(tokens[end - self.size : end])
            self.say(BlockStored((name,), parent, block, self.size, lora_name=lora_name, cache_salt=salt))
            parent = name

    def evict(self, tokens: list[int]) -> None:
        self.say(BlockRemoved((self.names[tuple(tokens)],)))

    def clear(self) -> None:
        self.say(AllBlocksCleared())


def ask(tokens: list[int], model: str | None = "m", salt: str | None = None, name: str = "r") -> RouteRequest:
    return RouteRequest(name, model, len(tokens), (tuple(tokens),), salt)
