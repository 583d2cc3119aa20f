"""Which worker has which prefix: a radix tree for each worker, overlaid so that one walk answers for all of them.

A block's hash names its whole path from the root (it chains over its parent's), so to compare two places is to compare
all before them, and a walk may jump over what all candidates share. A set of slots is an int used as a bit mask, bit i
for slot i.

Three kinds of entries are kept apart and united by `match`:
- held (held_blocks.py): blocks that an engine announced. Matched by *our* hash, removed by the *engine's* (wire page:
  engine hashes need not be computable, or equal between engines).
- leased (leases.py): blocks of prompts in flight, which an engine announces only with its first token.
- assumed (assumed.py): blocks of prompts that were computed where no engine announces them. They are leases, too, which
  end by a bound and not with the prompt.

Held blocks follow set semantics: the first removal of a hash removes it, however often it was stored. Engines announce
a second copy (a block-aligned prompt computed again) and a mere repetition (vLLM's kv_cache_report_mode=full) in the
same words; counting would keep blocks that are gone, a set at worst forgets a copy that is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kv_events.events import GPU_MEDIUM, BlockRemoved, BlockStored, EngineHash
from kv_events.hashing import UnmappableEvent, stored_hashes
from router.assumed import Assumed
from router.held_blocks import HeldBlocks
from router.leases import Leases
from router.orphans import Orphans

MAX_ORPHANS = 1024


def ones_at(mask: int, width: int) -> NDArray[np.float64]:
    """1 at each of the first `width` bits that is set in `mask`, lowest first; it has no others set."""
    octets = np.frombuffer(mask.to_bytes((width + 7) // 8, "little"), np.uint8)
    return np.unpackbits(octets, count=width, bitorder="little").astype(np.float64)


@dataclass(frozen=True, slots=True)
class Edge:
    """A run of blocks without a branch. `first` is its first block's hash, `parent` the `first` of the edge above."""

    first: int
    parent: int | None
    blocks: int


@dataclass(frozen=True, slots=True)
class IndexStats:
    """One slot's counts; the last three count since the slot was opened."""

    blocks: int
    orphans: int
    orphans_dropped: int
    unmappable: int
    evicted: int


class _Slot:
    """What is known of one slot beside the blocks that it holds."""

    def __init__(self) -> None:
        self.orphans = Orphans(MAX_ORPHANS)
        self.assumed = Assumed()
        self.unmappable = 0


class PrefixIndex:
    """The overlaid trees. Slots are small ints that the caller gives; events of a closed slot are an error.

    `max_bytes` bounds the held blocks of all slots together. Past it, those that nothing continues and that were
    matched or stored least recently are forgotten; held_blocks.py says whose.
    """

    def __init__(self, *, max_bytes: int = 4 << 30) -> None:
        self._held = HeldBlocks(max_bytes)
        self._leases = Leases()
        self._slots: dict[int, _Slot] = {}

    def open(self, slot: int) -> None:
        assert slot not in self._slots, f"slot {slot} is open"
        self._slots[slot] = _Slot()
        self._held.open(slot)

    def close(self, slot: int) -> None:
        """Forget the slot. Its leases end with the tickets that hold them."""
        self.clear(slot)
        self._held.close(slot)
        del self._slots[slot]

    def match(self, hashes: Sequence[int], blocks: int, slots: int, trusted: int) -> list[tuple[int, int]]:
        """How many of a prompt's first `blocks` blocks the slots of the mask `slots` have, from the beginning on: as
        pairs of a number and of the slots, a mask, that have just so many. Each slot is in one of them.

        Held blocks count for slots in `trusted` only, leased ones for all. A hole ends a slot's match: blocks behind
        it cannot be used.
        """
        ends: list[tuple[int, int]] = []
        depth = held_end = held = 0
        leases = self._leases.stretches(hashes)
        stretches = iter(self._held.walk(hashes, leases[-1][0] if leases else 0) if trusted else ())
        for stretch_end, leased in (*leases, (blocks, 0)):
            end = min(stretch_end, blocks)
            while depth < end and slots & ~leased:  # those that expect all up to `end` need not hold it
                while held_end <= depth:
                    held_end, held = next(stretches, (len(hashes), 0))
                here = held & trusted | leased
                if gone := slots & ~here:
                    ends.append((depth, gone))
                    slots &= here
                depth = min(held_end, end)
            depth = end
        if slots:
            ends.append((blocks, slots))
        return ends

    # What engines announce

    def store(self, slot: int, event: BlockStored) -> None:
        """Insert the event's blocks under its parent, or let it wait for the parent. Other tiers than GPU: ignored."""
        if event.medium not in (GPU_MEDIUM, None):
            return
        pending = [event]
        while pending:
            pending += self._insert(slot, pending.pop())

    def _insert(self, slot: int, event: BlockStored) -> list[BlockStored]:
        """Insert one event; returns the orphans that waited for its blocks."""
        about = self._slots[slot]
        place = parent = None
        if event.parent_block_hash is not None:
            place = self._held.find(slot, event.parent_block_hash)
            if place is None:
                about.orphans.add(event)
                return []
            chain, at = place
            parent = chain.hashes[at]
        try:
            hashes = stored_hashes(event, parent)
        except UnmappableEvent:
            about.unmappable += 1
            return []
        self._held.hold(slot, [*event.block_hashes], hashes, event.parent_block_hash, place)
        if not about.orphans:
            return []
        return [orphan for name in event.block_hashes for orphan in about.orphans.adopt(name)]

    def remove(self, slot: int, event: BlockRemoved) -> None:
        if event.medium not in (GPU_MEDIUM, None):
            return
        orphans = self._slots[slot].orphans
        if orphans:
            for name in event.block_hashes:
                orphans.remove(name)
        self._held.release(slot, event.block_hashes)

    def clear(self, slot: int) -> None:
        """Drop the slot's held and assumed blocks and all that waited, in time proportional to them."""
        self._held.clear(slot)
        about = self._slots[slot]
        about.orphans.clear()
        for hashes in about.assumed.clear():
            self._leases.end(slot, hashes)

    # What the router predicts

    def lease(self, slot: int, hashes: Sequence[int]) -> None:
        """A prompt with these blocks was sent to `slot`: count them as there until `end_lease`."""
        self._leases.add(slot, hashes)

    def end_lease(self, slot: int, hashes: Sequence[int]) -> None:
        self._leases.end(slot, hashes)

    def keep_lease(self, slot: int, hashes: Sequence[int], max_blocks: int) -> None:
        """Instead of `end_lease`: the prompt was computed and nobody will announce it, so its blocks count until the
        slot's later prompts have more than `max_blocks`."""
        about = self._slots.get(slot)
        gone = about.assumed.add(hashes, max_blocks) if about and hashes else [hashes]
        for each in gone:
            self._leases.end(slot, each)

    # What people and tests look at

    def blocks(self, slot: int) -> frozenset[int]:
        """Our hashes of the blocks that `slot` holds."""
        return frozenset(self._held.parents(slot))

    def engine_blocks(self, slot: int) -> frozenset[EngineHash]:
        """The engine's names of the blocks that `slot` holds."""
        return self._held.names(slot)

    @property
    def leased_blocks(self) -> int:
        """Of prompts in flight and of assumed ones."""
        return len(self._leases)

    @property
    def assumed_blocks(self) -> int:
        return sum(len(about.assumed) for about in self._slots.values())

    @property
    def held_bytes(self) -> int:
        """What the held blocks of all slots take."""
        return self._held.nbytes

    def held_blocks(self, slot: int) -> int:
        return self._held.blocks(slot)

    def stats(self, slot: int) -> IndexStats:
        about = self._slots[slot]
        orphans = about.orphans
        held = self._held
        return IndexStats(
            held.blocks(slot), len(orphans), orphans.dropped, about.unmappable, evicted=held.evicted(slot)
        )

    def tree(self, slot: int) -> list[Edge]:
        """The slot's radix tree, parents before children. A root is a first block, or one whose parent was evicted."""
        parents = self._held.parents(slot)
        children: dict[int | None, list[int]] = {}
        for block_hash in sorted(parents):
            parent = parents[block_hash]
            children.setdefault(parent if parent in parents else None, []).append(block_hash)
        edges: list[Edge] = []
        pending: list[tuple[int, int | None]] = [(first, None) for first in children.get(None, [])]
        while pending:  # no recursion: prompts are deeper than Python's stack
            first, parent = pending.pop()
            blocks, last = 1, first
            while len(below := children.get(last, [])) == 1:
                blocks, last = blocks + 1, below[0]
            edges.append(Edge(first, parent, blocks))
            pending += [(child, first) for child in below]
        return edges

    def check(self) -> None:
        """Raise AssertionError unless the maps agree with each other."""
        self._held.check()
        self._leases.check()
