"""Which worker has which prefix: a radix tree for each worker, overlaid so that one walk answers for all of them.

A block's hash names its whole path from the root (it chains over its parent's), so a prompt's hashes can be looked up
in any order, and a walk may jump over what all candidates share. A set of slots is an int used as a bit mask, bit i for
slot i.

Three kinds of entries are kept apart and united by `match`:
- held (runs.py): blocks that an engine announced. Matched by *our* hash, removed by the *engine's* (wire page: engine
  hashes need not be computable, or equal between engines).
- leased (leases.py): blocks of prompts in flight, which an engine announces only with its first token.
- assumed (assumed.py): blocks of prompts that were computed where no engine announces them. They are leases, too, which
  end by a bound and not with the prompt.

Held blocks follow set semantics: the first removal of a hash removes it, however often it was stored. Engines announce
a second copy (a block-aligned prompt computed again) and a mere repetition (vLLM's kv_cache_report_mode=full) in the
same words; counting would keep blocks that are gone, a set at worst forgets a copy that is left.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from kv_events.events import GPU_MEDIUM, BlockRemoved, BlockStored, EngineHash
from kv_events.hashing import UnmappableEvent, stored_hashes
from router.assumed import Assumed
from router.leases import Leases
from router.orphans import Orphans
from router.runs import HeldRuns

MAX_BLOCKS = 1 << 22
"""Bound on one slot's blocks: 64 M tokens in blocks of 16, above any engine's GPU pool. Past it stores are refused."""
MAX_ORPHANS = 1024
MAX_DEPARTED = 4096


@lru_cache(maxsize=1024)  # which slots have something in common changes seldom
def ones_at(mask: int, width: int) -> NDArray[np.float64]:
    """1 at each of the first `width` bits that is set in `mask`, lowest first; it has no others set."""
    octets = np.frombuffer(mask.to_bytes((width + 7) // 8, "little"), np.uint8)
    ones = np.unpackbits(octets, count=width, bitorder="little").astype(np.float64)
    ones.setflags(write=False)
    return ones


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
    refused: int


class _Held:
    """One slot's blocks by the names its engine gives them."""

    def __init__(self) -> None:
        self.ours: dict[EngineHash, int] = {}
        self.aliases: dict[int, int] = {}  # our hash -> engine names beyond the first (a hash may cover more than ours)
        self.departed: dict[EngineHash, int] = {}  # evicted names, whose children may still be stored
        self.departed_before: dict[EngineHash, int] = {}
        self.orphans = Orphans(MAX_ORPHANS)
        self.unmappable = self.refused = 0

    @property
    def blocks(self) -> int:
        return len(self.ours) - sum(self.aliases.values())

    def forget(self) -> None:
        """Back to empty; the counters go on."""
        self.ours.clear()
        self.aliases.clear()
        self.departed.clear()
        self.departed_before.clear()
        self.orphans.clear()

    def our_hash(self, name: EngineHash) -> int | None:
        block_hash = self.ours.get(name)
        if block_hash is None:
            block_hash = self.departed.get(name, self.departed_before.get(name))
        return block_hash

    def without_alias(self, hashes: Collection[int]) -> Collection[int]:
        """Each of `hashes` loses one name: those that had no other."""
        if not self.aliases:
            return hashes
        last = []
        for block_hash in hashes:
            others = self.aliases.pop(block_hash, 0)
            if others > 1:
                self.aliases[block_hash] = others - 1
            if not others:
                last.append(block_hash)
        return last

    def remember_departed(self, names: dict[EngineHash, int]) -> None:
        """Two dicts that take turns: the last MAX_DEPARTED names, and up to as many more."""
        self.departed |= names
        if len(self.departed) >= MAX_DEPARTED:
            self.departed_before, self.departed = self.departed, {}


class PrefixIndex:
    """The overlaid trees. Slots are small ints that the caller gives; events of a closed slot are an error."""

    def __init__(self, *, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._runs = HeldRuns()
        self._leases = Leases()
        self._slots: dict[int, _Held] = {}
        self._assumed: dict[int, Assumed] = {}

    def open(self, slot: int) -> None:
        assert slot not in self._slots, f"slot {slot} is open"
        self._slots[slot], self._assumed[slot] = _Held(), Assumed()

    def close(self, slot: int) -> None:
        """Forget the slot. Its leases end with the tickets that hold them."""
        self.clear(slot)
        del self._slots[slot], self._assumed[slot]

    def match(self, hashes: Sequence[int], blocks: int, slots: int, trusted: int) -> list[tuple[int, int]]:
        """How many of a prompt's first `blocks` blocks the slots of the mask `slots` have, from the beginning on: as
        pairs of a number and of the slots, a mask, that have just so many. Each slot is in one of them.

        Held blocks count for slots in `trusted` only, leased ones for all. A hole ends a slot's match: blocks behind
        it cannot be used.
        """
        ends: list[tuple[int, int]] = []
        depth = 0
        for stretch_end, leased in (*self._leases.stretches(hashes), (blocks, 0)):
            end = min(stretch_end, blocks)
            while depth < end and slots & ~leased:  # those that expect all up to `end` need not hold it
                held, run_end = self._runs.stretch(hashes, depth)
                here = held & trusted | leased
                if gone := slots & ~here:
                    ends.append((depth, gone))
                    slots &= here
                depth = min(run_end, end)
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
        held = self._slots[slot]
        parent = None
        if event.parent_block_hash is not None:
            parent = held.our_hash(event.parent_block_hash)
            if parent is None:
                held.orphans.add(event)
                return []
        try:
            hashes = stored_hashes(event, parent)
        except UnmappableEvent:
            held.unmappable += 1
            return []
        run = dict(zip(event.block_hashes, hashes, strict=True))
        room = self._max_blocks - len(held.ours)
        if len(run) == len(hashes) <= room and held.ours.keys().isdisjoint(run):
            self._hold_new(slot, held, run, parent)
        else:
            for name, block_hash, above in zip(event.block_hashes, hashes, [parent, *hashes], strict=False):
                self._hold(slot, held, name, block_hash, above)
        if not held.orphans:
            return []
        return [orphan for name in event.block_hashes for orphan in held.orphans.adopt(name)]

    def _hold_new(self, slot: int, held: _Held, run: dict[EngineHash, int], parent: int | None) -> None:
        """Hold a run of blocks, each the parent of the next, whose names are all new."""
        hashes, names = [*run.values()], [*run]
        already = self._runs.hold(1 << slot, hashes, names, parent)
        held.ours.update(zip(names, hashes, strict=True))
        for block_hash in already:
            held.aliases[block_hash] = held.aliases.get(block_hash, 0) + 1

    def _hold(self, slot: int, held: _Held, name: EngineHash, block_hash: int, parent: int | None) -> None:
        """Hold one block, whose name may have meant another."""
        if held.ours.get(name) == block_hash:
            return
        self._release(slot, held, (name,))
        if len(held.ours) < self._max_blocks:
            self._hold_new(slot, held, {name: block_hash}, parent)
        else:
            held.refused += 1

    def remove(self, slot: int, event: BlockRemoved) -> None:
        if event.medium not in (GPU_MEDIUM, None):
            return
        held = self._slots[slot]
        if held.orphans:
            for name in event.block_hashes:
                held.orphans.remove(name)
        self._release(slot, held, event.block_hashes)

    def _release(self, slot: int, held: _Held, names: Sequence[EngineHash]) -> None:
        hashes = [*map(held.ours.pop, names, repeat(None))]
        departed = {name: gone for name, gone in zip(names, hashes, strict=True) if gone is not None}
        if departed:
            held.remember_departed(departed)
            self._runs.release(1 << slot, held.without_alias(departed.values()))

    def clear(self, slot: int) -> None:
        """Drop the slot's held and assumed blocks and all that waited, in time proportional to them."""
        held = self._slots[slot]
        self._runs.release(1 << slot, set(held.ours.values()))
        held.forget()
        for hashes in self._assumed[slot].clear():
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
        if slot not in self._assumed or not hashes:
            self._leases.end(slot, hashes)
            return
        for gone in self._assumed[slot].add(hashes, max_blocks):
            self._leases.end(slot, gone)

    # What people and tests look at

    def blocks(self, slot: int) -> frozenset[int]:
        """Our hashes of the blocks that `slot` holds."""
        return frozenset(self._slots[slot].ours.values())

    def engine_blocks(self, slot: int) -> frozenset[EngineHash]:
        """The engine's names of the blocks that `slot` holds."""
        return frozenset(self._slots[slot].ours)

    @property
    def leased_blocks(self) -> int:
        """Of prompts in flight and of assumed ones."""
        return len(self._leases)

    @property
    def assumed_blocks(self) -> int:
        return sum(map(len, self._assumed.values()))

    def held_blocks(self, slot: int) -> int:
        return self._slots[slot].blocks

    def stats(self, slot: int) -> IndexStats:
        held = self._slots[slot]
        orphans = held.orphans
        return IndexStats(held.blocks, len(orphans), orphans.dropped, held.unmappable, held.refused)

    def tree(self, slot: int) -> list[Edge]:
        """The slot's radix tree, parents before children. A root is a first block, or one whose parent was evicted."""
        held = self.blocks(slot)
        children: dict[int | None, list[int]] = {}
        for block_hash in sorted(held):
            parent = self._runs.parent(block_hash)
            children.setdefault(parent if parent in held else None, []).append(block_hash)
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
        union: dict[int, int] = {}
        for slot, held in self._slots.items():
            for block_hash in set(held.ours.values()):
                union[block_hash] = union.get(block_hash, 0) | 1 << slot
            for block_hash, others in held.aliases.items():
                assert list(held.ours.values()).count(block_hash) == others + 1
            assert held.blocks == len(set(held.ours.values()))
        assert union == self._runs.slots_by_hash()
        self._runs.check()
        self._leases.check()
