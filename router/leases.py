"""Blocks that are expected on a slot, because a prompt that has them was sent there: from then until it ends.

Engines announce a block with the step that computes it. Without leases, requests for one prefix that come meanwhile
would each find it nowhere and scatter.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence


class _Node:
    """A run of blocks that the same prompts in flight have; the root has none.

    `leases` counts them by slot. All that is leased below a node is leased in it.
    """

    __slots__ = ("children", "hashes", "leases", "slots")

    def __init__(self, hashes: Sequence[int]) -> None:
        self.hashes = hashes
        self.children: dict[int, _Node] = {}  # by the hash of their first block
        self.leases: dict[int, int] = {}
        self.slots = 0  # those with leases, as a mask

    def lease(self, slot: int) -> None:
        self.leases[slot] = self.leases.get(slot, 0) + 1
        self.slots |= 1 << slot

    def end(self, slot: int) -> None:
        self.leases[slot] -= 1
        if not self.leases[slot]:
            del self.leases[slot]
            self.slots ^= 1 << slot

    def common(self, hashes: Sequence[int], first: int) -> int:
        """How many of its blocks `hashes` has from `first` on. A hash names all before it: halving finds that."""
        ours = self.hashes
        blocks = min(len(ours), len(hashes) - first)
        if ours[blocks - 1] == hashes[first + blocks - 1]:
            return blocks
        return bisect_left(range(blocks), True, key=lambda at: ours[at] != hashes[first + at])

    def split(self, blocks: int) -> "_Node":
        """A node with the first `blocks` of this one's, which keeps the others and becomes its child."""
        above = _Node(self.hashes[:blocks])
        above.leases, above.slots = self.leases.copy(), self.slots
        self.hashes = self.hashes[blocks:]
        above.children[self.hashes[0]] = self
        return above


class Leases:
    """A radix tree of the prompts in flight, with one node for each place where two of them part or one ends.

    Counted: each `add` is taken back by one `end` of the same.
    """

    def __init__(self) -> None:
        self._root = _Node(())
        self._blocks = 0

    def __len__(self) -> int:
        """Blocks that are leased, each once."""
        return self._blocks

    def add(self, slot: int, hashes: Sequence[int]) -> None:
        node, first = self._root, 0
        while first < len(hashes):
            child = node.children.get(hashes[first])
            if child is None:
                child = _Node(hashes[first:] if first else hashes)
                self._blocks += len(child.hashes)
            elif (common := child.common(hashes, first)) < len(child.hashes):
                child = child.split(common)
            node.children[hashes[first]] = child
            child.lease(slot)
            node, first = child, first + len(child.hashes)

    def end(self, slot: int, hashes: Sequence[int]) -> None:
        node, first = self._root, 0
        while first < len(hashes):
            child = node.children[hashes[first]]
            child.end(slot)
            if not child.slots:
                del node.children[hashes[first]]
                self._blocks -= len(hashes) - first  # nothing is leased below it but by this prompt
                return
            node, first = child, first + len(child.hashes)

    def stretches(self, hashes: Sequence[int]) -> list[tuple[int, int]]:
        """(end, slots) of each stretch of a prompt, from its beginning on: up to the block `end` (exclusive) exactly
        these slots expect it. Ends rise, and each mask is contained in the one before."""
        stretches = []
        node, first = self._root, 0
        while first < len(hashes) and (child := node.children.get(hashes[first])) is not None:
            common = child.common(hashes, first)
            first += common
            stretches.append((first, child.slots))
            if common < len(child.hashes):
                break
            node = child
        return stretches

    def check(self) -> None:
        """Raise AssertionError unless counts, masks and lengths agree."""
        blocks, pending = 0, [self._root]
        while pending:
            node = pending.pop()
            blocks += len(node.hashes)
            assert node.slots == sum(1 << slot for slot in node.leases)
            assert all(count > 0 for count in node.leases.values())
            for first, child in node.children.items():
                assert child.hashes[0] == first
                assert node is self._root or Counter(child.leases) <= Counter(node.leases)
                pending.append(child)
        assert blocks == self._blocks
