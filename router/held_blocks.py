"""What all slots hold: a radix tree of chains, in which each block is once, whoever holds it.

A block's hash names its whole path from the root, so a chain is found by the hash of its first block, wherever it
hangs. A slot's engine removes blocks by names of its own. Most often they are the names that another engine announced
first: then they cost nothing. Where they differ, the slot keeps a list of them for each chain, and a map.

What is kept is accounted for in bytes. Past the bound the slot that announced most blocks first gives, of those the
least recently matched or stored, and of a chain its end: a block goes only when nothing continues it.
"""

from collections.abc import Sequence
from itertools import pairwise

from kv_events.events import EngineHash
from router.chain_tree import ChainTree, Piece, Place
from router.chains import Chain, ChainQueue, Names, size_of_name, slots_in
from router.slot_blocks import SlotBlocks

EVICTED_AT_ONCE = 64
MAX_STEPS = 32


class HeldBlocks:
    """See the module's docstring. `max_bytes` bounds what all slots together keep."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tree = ChainTree()
        self._slots: dict[int, SlotBlocks] = {}
        self._slot_bytes = 0

    def open(self, slot: int) -> None:
        queue = self._tree.queues.setdefault(slot, ChainQueue())
        self._slots[slot] = held = SlotBlocks(slot, queue)
        self._recount(held)

    def close(self, slot: int) -> None:
        self.clear(slot)
        self._slot_bytes -= self._slots.pop(slot).nbytes

    # Finding

    def walk(self, hashes: Sequence[int], expected: int) -> list[tuple[int, int]]:
        """As the tree's."""
        return self._tree.walk(hashes, expected)

    def find(self, slot: int, name: EngineHash) -> Place | None:
        """The block that the slot holds under this name: its chain, and where in it."""
        held = self._slots[slot]
        if held.alias_of:
            name = held.alias_of.get(name, name)
        chain = self._chain_called(held, name)
        if chain is None:
            return None
        at = _index(held.names(chain), name)
        return (chain, at) if chain.slots_at(at) & held.bit else None

    def _chain_called(self, held: SlotBlocks, name: EngineHash) -> Chain | None:
        chain = held.own.get(name)
        if chain is None:
            chain = self._tree.called.get(name)
            if chain is not None and held.chains.get(chain, ()) is not None:
                return None  # others call a block so
        return chain

    # What a slot comes to hold

    def hold(
        self, slot: int, names: list[EngineHash], hashes: list[int], above: EngineHash | None, place: Place | None
    ) -> None:
        """The slot got these blocks, each the parent of the next. The first follows the block that is called `above`
        and is at `place`, or starts a prompt. A name that meant another block means it no longer."""
        held = self._slots[slot]
        if place and self._goes_on(held, names, hashes, place):
            self._append(held, place[0], names, hashes)
            place[0].use()
        elif place and self._follows(held, names, hashes, place):
            self._join(held, place[0], place[1] + 1, names)
            place[0].use()
        else:
            pieces = self._tree.pieces(hashes, place)
            if self._unheard(held, names) or self._agree(held, names, pieces):
                self._insert(held, names, hashes, place, pieces)
            else:
                self._hold_each(slot, names, hashes, above)
            self._recount(held)
        if self.nbytes > self._max_bytes:
            self._shrink(len(hashes))

    def _goes_on(self, held: SlotBlocks, names: list[EngineHash], hashes: list[int], place: Place) -> bool:
        """Whether these are new blocks behind a chain's last, as most are: then all that follows is simple."""
        chain, at = place
        return (
            at + 1 == len(chain.names)
            and held.chains[chain] is None
            and not self._tree.knows(hashes)
            and self._unheard(held, names)
        )

    def _follows(self, held: SlotBlocks, names: list[EngineHash], hashes: list[int], place: Place) -> bool:
        """Whether these are the next blocks of the chain, and the slot calls them as the chain does."""
        chain, at = place
        return (
            chain.names[at + 1 : at + 1 + len(names)] == names
            and held.chains[chain] is None
            and not held.own
            and not held.alias_of
            and chain.common(hashes, 0, at + 1) == len(hashes)
        )

    def _hold_each(self, slot: int, names: list[EngineHash], hashes: list[int], above: EngineHash | None) -> None:
        held = self._slots[slot]
        for name, block_hash in zip(names, hashes, strict=True):
            known = self.find(slot, name)
            if known is None or known[0].hashes[known[1]] != block_hash:
                self.release(slot, (name,))
                place = None if above is None else self.find(slot, above)
                if above is not None and place is None:
                    return  # it was the name of the block before it
                self._insert(held, [name], [block_hash], place, self._tree.pieces([block_hash], place))
            above = name

    def _unheard(self, held: SlotBlocks, names: list[EngineHash]) -> bool:
        """Whether the names are different ones, and none means a block to anybody."""
        return (
            self._tree.called.keys().isdisjoint(names)
            and (len(names) == 1 or len(set(names)) == len(names))
            and (not held.own or held.own.keys().isdisjoint(names))
            and (not held.alias_of or held.alias_of.keys().isdisjoint(names))
        )

    def _agree(self, held: SlotBlocks, names: list[EngineHash], pieces: list[Piece]) -> bool:
        """Whether all these blocks are held by others, who call them so, and none of the names is the slot's own."""
        at = 0
        for chain, start, count in pieces:
            if chain is None or chain.names[start : start + count] != names[at : at + count]:
                return False
            at += count
        return held.own.keys().isdisjoint(names) and held.alias_of.keys().isdisjoint(names)

    def _insert(
        self, held: SlotBlocks, names: list[EngineHash], hashes: list[int], place: Place | None, pieces: list[Piece]
    ) -> None:
        parent = place[0].hashes[place[1]] if place else None
        path = [place[0]] if place else []
        at = 0
        for chain, start, count in pieces:
            end = at + count
            if chain is None:
                chain = Chain(parent, held.queue, size_of_name(names[at]))
            if start == len(chain):
                self._append(held, chain, names[at:end], hashes[at:end])
            else:
                self._join(held, chain, start, names[at:end])
            path.append(chain)
            at, parent = end, hashes[end - 1]
        for chain in reversed(path):
            chain.use()

    def _append(self, held: SlotBlocks, chain: Chain, names: list[EngineHash], hashes: list[int]) -> None:
        """Blocks that nobody holds yet, at the end of a chain."""
        start, spans = len(chain), len(chain.stops)
        self._tree.append(chain, names, hashes)
        self._call(held, chain, start, names)
        chain.extend_span(held.bit)
        self._tree.count(chain, len(hashes), len(chain.stops) - spans)
        held.blocks += len(hashes)

    def _join(self, held: SlotBlocks, chain: Chain, start: int, names: list[EngineHash]) -> None:
        """Blocks of a chain from `start` on, some of which the slot may hold already."""
        spans = len(chain.stops)
        for first, last, slots in list(chain.spans(start, start + len(names))):
            called = names[first - start : last - start]
            if slots & held.bit:
                held.add_aliases(chain, first, called)
            else:
                self._call(held, chain, first, called)
                chain.set_holder(first, last, held.bit, True)
                held.blocks += last - first
        self._tree.count(chain, 0, len(chain.stops) - spans)

    # What a slot loses

    def release(self, slot: int, names: Sequence[EngineHash]) -> None:
        """The slot lost the blocks of these names, in any order. Names that mean nothing to it are ignored."""
        held = self._slots[slot]
        if held.alias_of:
            names = [name for name in names if not self._drop_alias(held, name)]
        gone: dict[Chain, list[EngineHash]] = {}
        for name in names:
            chain = self._chain_called(held, name)
            if chain is not None:
                gone.setdefault(chain, []).append(name)
        for chain, called in gone.items():
            rest: Chain | None = chain
            for start, stop in _stretches(held.names(chain), called):
                if rest is not None:
                    rest = self._lose(held, rest, start, stop)
        self._recount(held)

    def clear(self, slot: int) -> None:
        """The slot lost all, in time proportional to it."""
        held = self._slots[slot]
        for chain in list(held.chains):
            self._lose(held, chain, 0, len(chain))
        self._recount(held)

    def _lose(self, held: SlotBlocks, chain: Chain, start: int, stop: int) -> Chain | None:
        """The slot holds nothing between two blocks any more. Returns the chain that has those before, if any."""
        if stop == len(chain) and chain.masks[-1] == held.bit and (len(chain.stops) == 1 or start >= chain.stops[-2]):
            return self._lose_end(held, chain, start)
        self._give_up(held, chain, start, stop)
        for first, last, slots in reversed(list(chain.spans(start, stop))):
            if not slots:
                rest = self._discard(chain, first, last)
                if rest is None:
                    return None
                chain = rest
        return chain

    def _lose_end(self, held: SlotBlocks, chain: Chain, start: int) -> Chain | None:
        """As `_lose`, of what the slot alone holds and nothing follows, as most often: no span has to be parted."""
        stop = len(chain)
        held.forget_names(chain, start, stop)
        held.blocks -= stop - start
        rest = self._tree.cut_end(chain, start)
        if rest is None or not rest.slots() & held.bit:
            del held.chains[chain]
        return rest

    def _give_up(self, held: SlotBlocks, chain: Chain, start: int, stop: int) -> None:
        """As `_lose`, but blocks that nobody holds now stay where they are."""
        spans = len(chain.stops)
        for first, last in chain.held_by(held.bit, start, stop):
            held.forget_names(chain, first, last)
            chain.set_holder(first, last, held.bit, False)
            held.blocks -= last - first
        if not chain.slots() & held.bit:
            held.chains.pop(chain, None)
        self._tree.count(chain, 0, len(chain.stops) - spans)

    def _discard(self, chain: Chain, start: int, stop: int) -> Chain | None:
        """Forget blocks that nobody holds. Returns the chain that has those before."""
        if stop < len(chain):
            slots, (head, tail) = chain.slots(), self._tree.split(chain, stop)
            for slot in slots_in(slots):
                self._slots[slot].split(chain, stop, head, tail)
                self._recount(self._slots[slot])
            chain = head
        return self._tree.cut_end(chain, start)

    # What it is called

    def _call(self, held: SlotBlocks, chain: Chain, start: int, names: list[EngineHash]) -> None:
        """These are the slot's names of the blocks from `start` on."""
        stop = start + len(names)
        own = held.chains.setdefault(chain, None)
        if own is None:
            if chain.names[start:stop] == names:
                return
            own = held.make_own(chain)
        own += [None] * (stop - len(own))
        own[start:stop] = names
        held.own.update(dict.fromkeys(names, chain))
        held.name_bytes = size_of_name(names[0])

    def _drop_alias(self, held: SlotBlocks, name: EngineHash) -> bool:
        """Whether the block of this name has another one, which is all that it is called now."""
        called = held.alias_of.pop(name, None)
        if called is not None:
            held.aliases[called].remove(name)
            if not held.aliases[called]:
                del held.aliases[called]
            return True
        if name not in held.aliases:
            return False
        heir, *others = held.aliases.pop(name)
        del held.alias_of[heir]
        chain = self._chain_called(held, name)
        assert chain is not None, "what has an alias is held"
        self._call(held, chain, _index(held.names(chain), name), [heir])
        held.own.pop(name, None)
        for other in others:
            held.add_alias(other, heir)
        return True

    # The bound

    def _shrink(self, stored: int) -> None:
        """Towards the bound, at a pace set by what is stored: a map that grows passes it by millions of blocks at once,
        and no store may take long."""
        evicted = steps = 0
        while steps < MAX_STEPS and evicted < max(EVICTED_AT_ONCE, 2 * stored) and self.nbytes > self._max_bytes:
            evicted += self._evict()
            steps += 1

    def _evict(self) -> int:
        """Take the end of the stalest chain from all who hold it, and return how many blocks that were. Of a chain
        whose last block is continued nothing: what continues it was used later, so it was used then, too."""
        queue = max(self._tree.queues.values(), key=lambda queue: queue.blocks)
        chain = next(iter(queue.chains), None)
        if chain is None:
            return 0
        start, stop = self._tree.loose_end(chain, EVICTED_AT_ONCE), len(chain)
        if start == stop:
            chain.use()
            return 0
        for slot in slots_in(chain.slots()):
            held = self._slots[slot]
            before = held.blocks
            self._give_up(held, chain, start, stop)
            held.evicted += before - held.blocks
            self._recount(held)
        self._discard(chain, start, stop)
        return stop - start

    # The account

    @property
    def nbytes(self) -> int:
        """What all this takes, by the sizes of its parts."""
        return self._tree.nbytes + self._slot_bytes

    def _recount(self, held: SlotBlocks) -> None:
        size = held.size()
        self._slot_bytes += size - held.nbytes
        held.nbytes = size

    # What people and tests look at

    def blocks(self, slot: int) -> int:
        return self._slots[slot].blocks

    def evicted(self, slot: int) -> int:
        return self._slots[slot].evicted

    def names(self, slot: int) -> frozenset[EngineHash]:
        """All that the slot's engine calls a block that it holds."""
        held = self._slots[slot]
        spans = [held.names(chain)[first:last] for chain, first, last in held.spans()]
        return frozenset(held.alias_of).union(name for span in spans for name in span if name is not None)

    def parents(self, slot: int) -> dict[int, int | None]:
        """The hash of the block before each that the slot holds."""
        parents: dict[int, int | None] = {}
        for chain, first, last in self._slots[slot].spans():
            above = chain.hashes[first - 1] if first else chain.parent
            for block_hash in chain.hashes[first:last]:
                parents[block_hash], above = above, block_hash
        return parents

    def check(self) -> None:
        """Raise AssertionError unless the maps agree with each other and the account with what there is."""
        chains = self._tree.check()
        for slot, held in self._slots.items():
            assert held.chains.keys() == {chain for chain in chains if chain.slots() & held.bit}
            assert held.blocks == sum(last - first for _, first, last in held.spans())
            held.check()
            assert held.nbytes == held.size(), slot
        assert self._slot_bytes == sum(held.nbytes for held in self._slots.values())


def _index(names: Names, name: EngineHash) -> int:
    return len(names) - 1 if names[-1] == name else names.index(name)


def _stretches(names: Names, gone: list[EngineHash]) -> list[tuple[int, int]]:
    """Where among the names of a chain these lie, as (start, stop), from the last to the first."""
    first = _index(names, gone[-1])
    if names[first : first + len(gone)] == gone[::-1]:  # as engines evict: the end of a sequence, the last block first
        return [(first, first + len(gone))]
    place_of = {name: at for at, name in enumerate(names)}
    places = sorted({place_of[name] for name in gone})
    ends = [at for at, (place, following) in enumerate(pairwise(places), 1) if following != place + 1]
    bounds = [*pairwise([0, *ends, len(places)])]
    return [(places[first], places[end - 1] + 1) for first, end in reversed(bounds)]
