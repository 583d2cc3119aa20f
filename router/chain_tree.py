"""A radix tree of chains: finding them, linking them, and what they take.

A block's hash names its whole path from the root, so a chain is found by the hash of its first block, wherever it
hangs. Blocks are also found by name: that of the engine that announced them first.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from sys import getsizeof
from typing import TypeAlias

from kv_events.events import EngineHash
from router.chains import Chain, ChainQueue

Place: TypeAlias = tuple[Chain, int]
Piece: TypeAlias = tuple[Chain | None, int, int]

CHAIN_BYTES = 550
"""A chain's objects, its first span, its place in its queue and its first block's hash as a key."""
SPAN_BYTES = 96
"""Two cells in lists, and two numbers."""


class ChainTree:
    """Every chain, once; `queues` has them by the slot that began them."""

    def __init__(self) -> None:
        self.called: dict[EngineHash, Chain] = {}
        self.queues: dict[int, ChainQueue] = {}  # one stays when its slot closes: others may hold what it began
        self._by_first: dict[int, Chain] = {}
        self._continued: dict[int, int] = {}  # how many chains hang from a block
        self._block_bytes = self._span_count = 0

    # Finding

    def walk(self, hashes: Sequence[int], expected: int) -> list[tuple[int, int]]:
        """(end, slots) of the stretches of a prompt from its start: who holds the blocks up to `end`. Uses them.

        It goes on behind a block that nobody holds only among the first `expected`, which somebody expects.
        """
        found: list[tuple[int, int]] = []
        path: list[Chain] = []
        depth = 0
        while depth < len(hashes):
            chain = self._by_first.get(hashes[depth])
            if chain is None:
                if self._by_first.keys().isdisjoint(hashes[depth : expected + 1]):
                    break
                depth = next(at for at in range(depth, expected + 1) if hashes[at] in self._by_first)
                found.append((depth, 0))
                continue
            blocks = chain.common(hashes, depth)
            last = bisect_left(chain.stops, blocks)
            found += [(depth + stop, slots) for stop, slots in zip(chain.stops[:last], chain.masks, strict=False)]
            found.append((depth + blocks, chain.masks[last]))
            path.append(chain)
            depth += blocks
        for chain in reversed(path):  # a block is never older than what continues it
            chain.use()
        return found

    def knows(self, hashes: Sequence[int]) -> bool:
        """Whether a chain begins with one of these."""
        return not self._by_first.keys().isdisjoint(hashes)

    def pieces(self, hashes: list[int], place: Place | None) -> list[Piece]:
        """The blocks in pieces: those that are in a chain from `start` on, and those that nobody holds yet, which go
        to the end of a chain, or into a new one (None)."""
        chain, start = (place[0], place[1] + 1) if place else (None, 0)
        pieces: list[Piece] = []
        at = 0
        while at < len(hashes):
            count = chain.common(hashes, at, start) if chain is not None else 0
            if not count and (child := self._by_first.get(hashes[at])) is not None:
                chain, start = child, 0
                continue
            if not count:
                if chain is not None and start < len(chain):
                    chain, start = None, 0
                count = self._unknown(hashes, at)
            pieces.append((chain, start, count))
            at, start = at + count, start + count
        return pieces

    def _unknown(self, hashes: list[int], at: int) -> int:
        """How many blocks nobody holds, from the one at `at` that nobody holds."""
        known = self._by_first
        if known.keys().isdisjoint(hashes):
            return len(hashes) - at
        return next((end for end in range(at + 1, len(hashes)) if hashes[end] in known), len(hashes)) - at

    def loose_end(self, chain: Chain, most: int) -> int:
        """Where the last blocks of a chain that nothing continues begin, looking at so many at most."""
        start = len(chain)
        while start > max(0, len(chain) - most) and chain.hashes[start - 1] not in self._continued:
            start -= 1
        return start

    # Changing it

    def append(self, chain: Chain, names: list[EngineHash], hashes: list[int]) -> None:
        """Blocks that nobody holds yet, at the end of a chain, new or not. `Chain.extend_span` is to follow."""
        start = len(chain)
        taken = not self.called.keys().isdisjoint(names)
        chain.append(hashes, [None] * len(names) if taken else names)
        if not start:
            self._link(chain)
        if not taken:
            self.called.update(dict.fromkeys(names, chain))

    def cut_end(self, chain: Chain, start: int) -> Chain | None:
        """Forget the blocks from `start` on, which nobody holds. Returns what is left of the chain."""
        stop = len(chain)
        for name in chain.names[start:]:
            if name is not None:
                del self.called[name]
        if not start:
            self._unlink(chain)
        spans = len(chain.stops)
        chain.truncate(start)
        self.count(chain, start - stop, len(chain.stops) - spans)
        return chain if start else None

    def split(self, chain: Chain, at: int) -> tuple[Chain, Chain]:
        """Make two chains of one, of which the second begins with block `at`. The larger one stays what it was."""
        spans, parent = len(chain.stops), chain.hashes[at - 1]
        if at > len(chain) // 2:
            head, tail = chain, chain.take(at, len(chain), parent)
            new = tail
        else:
            self._unlink(chain)
            head, tail = chain.take(0, at, chain.parent), chain
            chain.parent = parent
            self._link(head)
            new = head
        self._link(tail)
        self.called.update((name, new) for name in new.names if name is not None)
        self.count(chain, 0, len(head.stops) + len(tail.stops) - spans)
        return head, tail

    def _link(self, chain: Chain) -> None:
        self._by_first[chain.hashes[0]] = chain
        if chain.parent is not None:
            self._continued[chain.parent] = self._continued.get(chain.parent, 0) + 1
        chain.queue.chains[chain] = None

    def _unlink(self, chain: Chain) -> None:
        del self._by_first[chain.hashes[0]], chain.queue.chains[chain]
        if chain.parent is not None:
            self._continued[chain.parent] -= 1
            if not self._continued[chain.parent]:
                del self._continued[chain.parent]

    # The account

    @property
    def nbytes(self) -> int:
        maps = getsizeof(self._by_first) + getsizeof(self.called) + getsizeof(self._continued)
        chains = len(self._by_first)
        spans = (self._span_count - chains) * SPAN_BYTES
        return self._block_bytes + chains * CHAIN_BYTES + spans + maps

    def count(self, chain: Chain, blocks: int, spans: int) -> None:
        """A chain has so many blocks and spans more."""
        self._block_bytes += blocks * chain.block_bytes
        self._span_count += spans
        chain.queue.blocks += blocks

    def check(self) -> list[Chain]:
        """All chains. Raises AssertionError unless the maps agree with them, and the account with what there is."""
        chains = [chain for queue in self.queues.values() for chain in queue.chains]
        assert self._by_first == {chain.hashes[0]: chain for chain in chains}
        assert self.called == {name: chain for chain in chains for name in chain.names if name is not None}
        assert self._continued == Counter(chain.parent for chain in chains if chain.parent is not None)
        for chain in chains:
            chain.check()
        for queue in self.queues.values():
            assert queue.blocks == sum(map(len, queue.chains))
        assert self._block_bytes == sum(len(chain) * chain.block_bytes for chain in chains)
        assert self._span_count == sum(len(chain.stops) for chain in chains)
        return chains
