"""A chain: blocks that follow one another, side by side in arrays, and which slots hold which stretch of them.

A set of slots is an int used as a bit mask, bit i for slot i.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from sys import getsizeof
from typing import TypeAlias

from kv_events.events import EngineHash

Names: TypeAlias = list[EngineHash | None]

HASH_BYTES, POINTER_BYTES = 8, 8  # in an array, in a list


def slots_in(mask: int) -> Iterator[int]:
    """The set bits of `mask`, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def size_of_name(name: EngineHash) -> int:
    """Bytes, as Python allocates them: 48 for a 64-bit number."""
    return -(-getsizeof(name) // 16) * 16 if isinstance(name, bytes) else 48


class Chain:
    """Blocks, each the parent of the next; some slot holds each of them.

    `hashes` are ours, `names` what the engine that announced a block first calls it, or None where that name was
    taken. `parent` is the hash of the block before the first. Span i ends before block `stops[i]`, where the next one
    begins, and is held by exactly the slots of `masks[i]`.
    """

    __slots__ = ("block_bytes", "hashes", "masks", "names", "parent", "queue", "stops")

    def __init__(self, parent: int | None, queue: "ChainQueue", name_bytes: int) -> None:
        self.parent, self.queue = parent, queue
        self.block_bytes = HASH_BYTES + POINTER_BYTES + name_bytes
        self.hashes = array("Q")
        self.names: Names = []
        self.stops: list[int] = []
        self.masks: list[int] = []

    def __len__(self) -> int:
        return len(self.hashes)

    def common(self, hashes: Sequence[int], first: int, start: int = 0) -> int:
        """How many of its blocks from `start` on a prompt has from `first` on; none when `start` is behind its end. A
        hash names all before it, so halving finds that."""
        ours = self.hashes
        blocks = max(0, min(len(ours) - start, len(hashes) - first))
        if not blocks or ours[start + blocks - 1] == hashes[first + blocks - 1]:
            return blocks
        return bisect_left(range(blocks), True, key=lambda at: ours[start + at] != hashes[first + at])

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(start, stop, slots) of the spans between two blocks, cut to lie between them."""
        for at in range(bisect_right(self.stops, start), len(self.stops)):
            if start >= stop:
                return
            end = min(self.stops[at], stop)
            yield start, end, self.masks[at]
            start = end

    def held_by(self, bit: int, start: int, stop: int) -> list[tuple[int, int]]:
        """(start, stop) of the spans that a slot holds."""
        return [(first, last) for first, last, slots in self.spans(start, stop) if slots & bit]

    def slots_at(self, block: int) -> int:
        return self.masks[bisect_right(self.stops, block)]

    def slots(self) -> int:
        """All who hold any of it."""
        union = 0
        for mask in self.masks:
            union |= mask
        return union

    def use(self) -> None:
        """It was matched or stored just now."""
        self.queue.chains.move_to_end(self)

    # Changing it

    def append(self, hashes: Sequence[int], names: Sequence[EngineHash | None]) -> None:
        """Blocks that nobody holds yet: `extend_span` is to follow."""
        self.hashes.extend(hashes)
        self.names.extend(names)

    def extend_span(self, mask: int) -> None:
        """What was appended is held by these slots."""
        if self.masks and self.masks[-1] == mask:
            self.stops[-1] = len(self)
        else:
            self.stops.append(len(self))
            self.masks.append(mask)

    def set_holder(self, start: int, stop: int, bit: int, holds: bool) -> None:
        """Whether a slot holds the blocks between two, from now on."""
        first, last = self._boundary(start), self._boundary(stop)
        for at in range(first, last):
            self.masks[at] = self.masks[at] | bit if holds else self.masks[at] & ~bit
        for at in range(min(last, len(self.stops) - 1), max(first, 1) - 1, -1):
            if self.masks[at] == self.masks[at - 1]:
                del self.masks[at], self.stops[at - 1]

    def _boundary(self, at: int) -> int:
        """The span that begins with block `at`; makes one begin there."""
        span = bisect_left(self.stops, at) + 1 if at else 0
        if span and self.stops[span - 1] != at:
            self.stops.insert(span - 1, at)
            self.masks.insert(span - 1, self.masks[span - 1])
        return span

    def truncate(self, blocks: int) -> None:
        """Forget all behind the first `blocks`."""
        spans = bisect_left(self.stops, blocks) + 1 if blocks else 0
        del self.hashes[blocks:], self.names[blocks:], self.stops[spans:], self.masks[spans:]
        if spans:
            self.stops[-1] = blocks

    def take(self, start: int, stop: int, parent: int | None) -> "Chain":
        """Move the blocks between two, at either end of it, into a new chain."""
        new = Chain(parent, self.queue, self.block_bytes - HASH_BYTES - POINTER_BYTES)
        new.append(self.hashes[start:stop], self.names[start:stop])
        for _, end, slots in self.spans(start, stop):
            new.stops.append(end - start)
            new.masks.append(slots)
        if start:
            self.truncate(start)
        else:
            span = self._boundary(stop)
            del self.hashes[:stop], self.names[:stop], self.masks[:span]
            self.stops = [end - stop for end in self.stops[span:]]
        return new

    def check(self) -> None:
        """Raise AssertionError unless the spans cover the blocks, each held by somebody, no two neighbours alike."""
        assert 0 < len(self.hashes) == len(self.names) == self.stops[-1]
        assert len(self.stops) == len(self.masks)
        assert all(self.masks)
        assert all(before < after for before, after in pairwise([0, *self.stops]))
        assert all(before != after for before, after in pairwise(self.masks))


class ChainQueue:
    """The chains that one slot began, the least recently used first, and how many blocks they have together."""

    __slots__ = ("blocks", "chains")

    def __init__(self) -> None:
        self.chains: OrderedDict[Chain, None] = OrderedDict()
        self.blocks = 0
