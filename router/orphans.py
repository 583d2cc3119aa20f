"""Stored events whose parent block is not known yet: they wait here, bounded, until the parent is announced."""

from collections import OrderedDict

from kv_events.events import BlockStored, EngineHash


class Orphans:
    """Oldest first; the oldest is dropped at the bound, which loses hits but never invents one."""

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        self._waiting: OrderedDict[EngineHash, list[BlockStored]] = OrderedDict()  # by the parent they wait for
        self._parent_of: dict[
            EngineHash, EngineHash
        ] = {}  # block of a waiting event -> the parent that event waits for
        self.dropped = 0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, event: BlockStored) -> None:
        parent = event.parent_block_hash
        assert parent is not None, "a block without a parent is no orphan"
        self._waiting.setdefault(parent, []).append(event)
        self._parent_of.update(dict.fromkeys(event.block_hashes, parent))
        while len(self._waiting) > 1 and len(self) > self._max_events:
            self._drop(next(iter(self._waiting)))

    def adopt(self, parent: EngineHash) -> list[BlockStored]:
        """The events that waited for `parent`; they wait no longer."""
        events = self._waiting.pop(parent, [])
        for event in events:
            for block in event.block_hashes:
                self._parent_of.pop(block, None)
        return events

    def remove(self, block: EngineHash) -> None:
        """The engine evicted `block`. All that waits beside it goes too: fewer blocks known is the safe side."""
        parent = self._parent_of.get(block)
        if parent is not None:
            self._drop(parent)

    def clear(self) -> None:
        self._waiting.clear()
        self._parent_of.clear()

    def _drop(self, parent: EngineHash) -> None:
        self.dropped += len(self.adopt(parent))
