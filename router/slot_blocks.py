"""What one slot holds of the chains, and what its engine calls it."""

from collections.abc import Iterator
from sys import getsizeof

from kv_events.events import EngineHash
from router.chains import POINTER_BYTES, Chain, ChainQueue, Names, size_of_name

ALIAS_BYTES = 300


class SlotBlocks:
    """`chains` has every chain that the slot holds some of: with its own names for the blocks, None for those that it
    does not hold; or with None, when it calls all of them as the chain does. `own` finds the chain of such a name.

    A block has aliases when its engine announced it under further names. `queue` has the chains that the slot began.
    """

    __slots__ = ("alias_of", "aliases", "bit", "blocks", "chains", "evicted", "name_bytes", "nbytes", "own", "queue")

    def __init__(self, slot: int, queue: ChainQueue) -> None:
        self.bit, self.queue = 1 << slot, queue
        self.chains: dict[Chain, Names | None] = {}
        self.own: dict[EngineHash, Chain] = {}
        self.aliases: dict[EngineHash, list[EngineHash]] = {}
        self.alias_of: dict[EngineHash, EngineHash] = {}
        self.blocks = self.evicted = self.nbytes = 0
        self.name_bytes = size_of_name(0)

    def names(self, chain: Chain) -> Names:
        own = self.chains[chain]
        return chain.names if own is None else own

    def spans(self) -> Iterator[tuple[Chain, int, int]]:
        """(chain, start, stop) of all that it holds."""
        return ((chain, first, last) for chain in self.chains for first, last in chain.held_by(self.bit, 0, len(chain)))

    def make_own(self, chain: Chain) -> Names:
        """From now on the slot has names of its own for the blocks of this chain: at first those that the chain has."""
        own: Names = [None] * len(chain)
        self.chains[chain] = own
        for first, last in chain.held_by(self.bit, 0, len(chain)):
            own[first:last] = chain.names[first:last]
        self.own.update((name, chain) for name in own if name is not None)
        return own

    def forget_names(self, chain: Chain, start: int, stop: int) -> None:
        """Blocks of the chain, all of which it holds, will be called nothing any more."""
        if self.aliases:
            for name in self.names(chain)[start:stop]:
                for alias in self.aliases.pop(name, ()):  # type: ignore[arg-type]  # what is held has a name
                    del self.alias_of[alias]
        own = self.chains[chain]
        if own is not None:
            for name in own[start:stop]:
                del self.own[name]  # type: ignore[arg-type]
            own[start:stop] = [None] * (stop - start)

    def add_aliases(self, chain: Chain, start: int, names: list[EngineHash]) -> None:
        """Blocks of the chain, all of which it holds, were announced under these names."""
        called = self.names(chain)[start : start + len(names)]
        if called != names:
            for name, alias in zip(called, names, strict=True):
                if name is not None and name != alias:
                    self.add_alias(alias, name)

    def add_alias(self, alias: EngineHash, name: EngineHash) -> None:
        self.alias_of[alias] = name
        self.aliases.setdefault(name, []).append(alias)

    def split(self, chain: Chain, at: int, head: Chain, tail: Chain) -> None:
        """The chain, some of which the slot holds, was split before block `at`."""
        own = self.chains.pop(chain)
        for part, names in ((head, own and own[:at]), (tail, own and own[at:])):
            if part.slots() & self.bit:
                self.chains[part] = names
                self.own.update((name, part) for name in names or () if name is not None)

    def size(self) -> int:
        """Bytes."""
        own = len(self.own) * (self.name_bytes + POINTER_BYTES) + len(self.alias_of) * ALIAS_BYTES
        return own + getsizeof(self.chains) + getsizeof(self.own)

    def check(self) -> None:
        """Raise AssertionError unless the maps agree with each other."""
        own = {name: chain for chain, names in self.chains.items() for name in names or () if name is not None}
        assert self.own == own
        for chain, first, last in self.spans():
            assert None not in self.names(chain)[first:last]
        assert self.alias_of == {alias: name for name, aliases in self.aliases.items() for alias in aliases}
