"""The paged KV pool as a prefix cache: which blocks are taken, which hold a known prefix, which go next.

vLLM's way (vllm/v1/core/block_pool.py): every full block is known by a digest that says its whole prefix; a block that
nobody uses keeps its content and its digest and waits in the free queue, from where a new prompt with the same prefix
takes it back. Blocks are allocated from the head of that queue and returned to its tail, the last block of a sequence
first: so the queue is at once the free list and the LRU order, and a sequence loses its end before its beginning. A
block that holds nothing known returns to the head instead: reusing it costs no cache.

Blocks are registered when their tokens are scheduled, so that equal prompts of one step share them: every layer writes
the K/V of all tokens of a step before it attends. `forget_unconfirmed` takes that back when the step fails.

A digest is registered once. A block computed again although its twin is cached (a repeated prompt of whole blocks: its
last token is always computed) stays unnamed. vLLM names both twins and publishes two stored and two removed events; one
name for one block keeps the meaning of each event plain.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from kv_events.events import AllBlocksCleared, BlockRemoved, KvEvent
from kv_events.hashing import published_hashes
from worker.token_chain import TokenChain


class BlockManager:
    """`num_blocks` blocks of `block_size` tokens, told apart by number; `caching` off: blocks are never named.

    The free queue, the reference counts and both name maps hold at most one entry a block; `take_events` empties the
    list of events once a step.
    """

    def __init__(self, num_blocks: int, block_size: int, *, caching: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a KV pool needs at least one block of one token, not {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.caching = caching
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # head: reused next
        self._shared: dict[int, int] = {}  # block -> references beyond the first; one that is not free has at least one
        self._digest_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._unconfirmed: list[int] = []
        self._events: list[KvEvent] = []

    def __repr__(self) -> str:
        return f"<BlockManager {self.used_blocks}/{self.num_blocks} used, {len(self._block_of)} cached>"

    @property
    def used_blocks(self) -> int:
        """Blocks that running sequences hold; cached blocks that wait in the free queue are not among them."""
        return self.num_blocks - len(self._free)

    @property
    def free_blocks(self) -> int:
        """Blocks that can be acquired fresh, those with cached content included."""
        return len(self._free)

    def cached_digests(self) -> frozenset[bytes]:
        """The digests of all blocks that a new prompt could find."""
        return frozenset(self._block_of)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks that many tokens fill or begin."""
        return -(-tokens // self.block_size)

    def find_cached(self, chain: TokenChain) -> list[int]:
        """The blocks of the longest cached prefix, without taking them.

        They never cover the chain's last token: that must be computed to know what follows it.
        """
        if not self.caching:
            return []
        found = []
        for block in map(self._block_of.get, chain.digests((len(chain) - 1) // self.block_size)):
            if block is None:
                break
            found.append(block)
        return found

    def acquire(self, cached: Sequence[int], fresh: int) -> list[int] | None:
        """Take one reference to each block of `cached` and `fresh` blocks more; they are returned in this order.

        What the fresh blocks held is forgotten. None, and nothing changed, if the pool has not that many.
        """
        idle = sum(map(self._free.__contains__, cached))
        if fresh > len(self._free) - idle:
            return None
        for block in cached:
            if block in self._free:
                del self._free[block]
            else:
                self._shared[block] = self._shared.get(block, 0) + 1
        pop = self._free.popitem
        taken = [pop(False)[0] for _ in range(fresh)]
        self._forget(taken)
        return [*cached, *taken]

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference to each of a sequence's blocks; those that nobody else holds join the free queue."""
        free, digest_of = self._free, self._digest_of
        if self._shared and not self._shared.keys().isdisjoint(blocks):
            blocks = [block for block in blocks if not self._unshare(block)]
        free.update(dict.fromkeys(reversed(blocks)))  # the last is least likely to be shared, so it goes first
        blank = [block for block in blocks if digest_of[block] is None]
        for block in reversed(blank):
            free.move_to_end(block, last=False)

    def _unshare(self, block: int) -> bool:
        """Drop a reference to `block` beyond its first; False if it has no such."""
        references = self._shared.pop(block, 0)
        if references > 1:
            self._shared[block] = references - 1
        return references > 0

    def register(self, chain: TokenChain, block_table: Sequence[int], first: int, last: int) -> None:
        """Name the blocks `first` up to `last` (exclusive) of a sequence, which this step fills."""
        if not self.caching or first >= last:
            return
        digests, digest_of = chain.digests(last), self._digest_of
        for start, stop in self._unknown_runs(digests, first):
            blocks, names = block_table[start:stop], digests[start:stop]
            self._block_of.update(zip(names, blocks, strict=True))
            for block, digest in zip(blocks, names, strict=True):
                digest_of[block] = digest
            self._unconfirmed += blocks
            self._events.append(chain.stored_event(start, stop))

    def forget_unconfirmed(self) -> None:
        """Unname the blocks registered since the last `take_events`: the step that should have filled them failed."""
        self._forget(self._unconfirmed)
        self._unconfirmed = []

    def take_events(self) -> list[KvEvent]:
        """What happened since the last call, in order. Once a step: the blocks named meanwhile count as computed."""
        events, self._events = self._events, []
        self._unconfirmed = []
        return events

    def clear(self) -> bool:
        """Forget all cached prefixes; False, and nothing changed, while a sequence holds blocks."""
        if self.used_blocks:
            return False
        self._block_of.clear()
        self._digest_of = [None] * self.num_blocks
        self._events.append(AllBlocksCleared())
        return True

    def check(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Assert the invariants, given the block tables of all sequences that hold blocks."""
        held = Counter(block for table in block_tables for block in table)
        for block in range(self.num_blocks):
            references = 0 if block in self._free else 1 + self._shared.get(block, 0)
            assert references == held[block], f"block {block}: {references} references, {held[block]} in tables"
            digest = self._digest_of[block]
            assert digest is None or self._block_of[digest] == block, f"block {block}: not found under its name"
        assert sum(digest is not None for digest in self._digest_of) == len(self._block_of), "a name without a block"

    def _unknown_runs(self, digests: Sequence[bytes], first: int) -> list[tuple[int, int]]:
        """Start and stop of each run of digests, from number `first` on, that no block has."""
        if self._block_of.keys().isdisjoint(digests[first:]):
            return [(first, len(digests))]
        known = [index for index in range(first, len(digests)) if digests[index] in self._block_of]
        bounds = pairwise([first - 1, *known, len(digests)])
        return [(before + 1, after) for before, after in bounds if before + 1 < after]

    def _forget(self, blocks: Sequence[int]) -> None:
        """Take the names of those that have one, and say so in one event."""
        digest_of = self._digest_of
        digests = [digest for block in blocks if (digest := digest_of[block]) is not None]
        if not digests:
            return
        for block in blocks:
            digest_of[block] = None
        for digest in digests:
            del self._block_of[digest]
        self._events.append(BlockRemoved(published_hashes(digests), group_idx=0))
