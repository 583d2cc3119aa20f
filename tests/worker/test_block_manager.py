"""The paged prefix cache against a model that knows prefixes and times instead of blocks, digests and queues."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, precondition, rule

from kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, KvEvent
from kv_events.hashing import published_hash
from worker.block_manager import BlockManager
from worker.token_chain import TokenChain


def start(manager: BlockManager, chain: TokenChain) -> list[int] | None:
    """Take and register the blocks of a whole prompt, as one step does."""
    cached = manager.find_cached(chain)
    table = manager.acquire(cached, manager.blocks_for(len(chain)) - len(cached))
    if table is not None:
        manager.register(chain, table, len(cached), len(chain) // manager.block_size)
    return table


def hashes(chain: TokenChain, blocks: int) -> list[EngineHash]:
    return [published_hash(digest) for digest in chain.digests(blocks)]


class TestPublishedExample:
    """Four blocks of two tokens, a prompt of five: the free queue is the LRU queue, freed in reverse."""

    def setup_method(self) -> None:
        self.manager = BlockManager(4, 2)
        self.first = TokenChain([1, 2, 3, 4, 5], 2)
        table = start(self.manager, self.first)
        assert table == [0, 1, 2]
        self.manager.release(table)
        self.manager.take_events()

    def test_freed_blocks_are_found_again(self) -> None:
        assert self.manager.find_cached(TokenChain([1, 2, 3, 4, 9], 2)) == [0, 1]

    def test_another_context_finds_nothing(self) -> None:
        assert self.manager.find_cached(TokenChain([9, 9, 3, 4, 5], 2)) == []

    def test_the_last_token_is_always_computed(self) -> None:
        assert self.manager.find_cached(TokenChain([1, 2, 3, 4], 2)) == [0]

    def test_allocation_evicts_the_end_of_the_prefix_first(self) -> None:
        cached = self.manager.find_cached(self.first)
        assert self.manager.acquire(cached, 0) == [0, 1]
        self.manager.release([0, 1])
        taken = self.manager.acquire((), 3)
        assert taken is not None
        assert set(taken) == {2, 3, 1}, "the two blocks that hold nothing known, then the end of the prefix"
        assert self.manager.find_cached(TokenChain([1, 2, 3, 4, 9], 2)) == [0]
        assert self.manager.take_events() == [BlockRemoved((hashes(self.first, 2)[1],), group_idx=0)]

    def test_a_touched_block_outlives_one_freed_later(self) -> None:
        other = start(self.manager, TokenChain([7, 8, 9], 2))
        assert other is not None
        self.manager.release(other)
        self.manager.acquire([0], 0)
        self.manager.release([0])
        self.manager.acquire((), 3)
        assert self.manager.find_cached(self.first) == [0]

    def test_acquiring_too_much_changes_nothing(self) -> None:
        assert self.manager.acquire([0, 1], 3) is None
        self.manager.check([])
        assert self.manager.find_cached(self.first) == [0, 1]
        assert self.manager.take_events() == []


def test_removals_come_before_the_store_that_displaced_them() -> None:
    manager = BlockManager(2, 2)
    old, new = TokenChain([1, 2, 3, 4], 2), TokenChain([5, 6, 7, 8], 2)
    table = start(manager, old)
    assert table is not None
    manager.release(table)
    manager.take_events()
    start(manager, new)
    assert manager.take_events() == [
        BlockRemoved(tuple(reversed(hashes(old, 2))), group_idx=0),
        new.stored_event(0, 2),
    ]


def test_equal_prompts_of_one_step_share_blocks() -> None:
    manager = BlockManager(8, 2)
    assert start(manager, TokenChain([1, 2, 3, 4, 5], 2)) == [0, 1, 2]
    assert start(manager, TokenChain([1, 2, 3, 4, 6], 2)) == [0, 1, 3]
    assert len(manager.take_events()) == 1


def test_a_twin_is_not_registered_and_not_announced() -> None:
    """A repeated prompt of whole blocks computes its last block although that is cached."""
    manager = BlockManager(8, 2)
    start(manager, TokenChain([1, 2, 3, 4], 2))
    manager.take_events()
    assert start(manager, TokenChain([1, 2, 3, 4], 2)) == [0, 2]
    assert manager.take_events() == []
    assert manager.find_cached(TokenChain([1, 2, 3, 4, 5], 2)) == [0, 1]


def test_a_cached_block_in_the_middle_splits_the_announcement() -> None:
    manager = BlockManager(3, 2)
    chain = TokenChain([1, 2, 3, 4, 5, 6], 2)
    table = start(manager, chain)
    assert table == [0, 1, 2]
    manager.release(table)
    manager.acquire((), 1)  # evicts the last block
    manager.acquire([1], 0)
    manager.acquire((), 1)  # evicts the first, the middle one stays
    manager.take_events()
    manager.register(chain, [0, 9, 2], 0, 3)
    assert manager.take_events() == [chain.stored_event(0, 1), chain.stored_event(2, 3)]


def test_a_failed_step_leaves_no_name_behind() -> None:
    manager = BlockManager(6, 2)
    chain = TokenChain([1, 2, 3, 4, 5], 2)
    kept = TokenChain([7, 8, 9], 2)
    start(manager, kept)
    manager.take_events()
    table = start(manager, chain)
    assert table is not None
    manager.forget_unconfirmed()
    manager.release(table)
    assert manager.cached_digests() == set(kept.digests(1))
    assert replayed(set(), manager.take_events()) == set()


def test_clear_is_refused_while_blocks_are_held() -> None:
    manager = BlockManager(4, 2)
    table = start(manager, TokenChain([1, 2, 3], 2))
    assert table is not None
    manager.take_events()
    assert not manager.clear()
    assert manager.take_events() == []
    manager.release(table)
    assert manager.clear()
    assert manager.take_events() == [AllBlocksCleared()]
    assert manager.find_cached(TokenChain([1, 2, 3], 2)) == []


def test_without_caching_nothing_is_found_or_said() -> None:
    manager = BlockManager(4, 2, caching=False)
    table = start(manager, TokenChain([1, 2, 3, 4, 5], 2))
    assert table is not None
    manager.release(table)
    assert manager.find_cached(TokenChain([1, 2, 3, 4, 5], 2)) == []
    assert manager.take_events() == []


def replayed(known: set[EngineHash], events: list[KvEvent]) -> set[EngineHash]:
    """What a listener believes after `events`; removing the unknown or storing the known would be a false report."""
    for event in events:
        match event:
            case BlockStored():
                assert not known & set(event.block_hashes)
                known = known | set(event.block_hashes)
            case BlockRemoved():
                assert set(event.block_hashes) <= known
                known = known - set(event.block_hashes)
            case AllBlocksCleared():
                known = set()
    return known


BLOCKS, BLOCK_SIZE = 6, 2
Prefix = tuple[str | None, tuple[int, ...]]


@dataclass(eq=False)
class Live:
    chain: TokenChain
    table: list[int]

    def prefixes(self, first: int, last: int) -> list[Prefix]:
        tokens = self.chain.token_ids
        return [(self.chain.salt, tuple(tokens[: (block + 1) * BLOCK_SIZE])) for block in range(first, last)]

    @property
    def full(self) -> int:
        return len(self.chain) // BLOCK_SIZE


@dataclass
class Oracle:
    """What is cached, and since when nobody uses it; `written` is what each block really holds."""

    idle_since: dict[Prefix, int | None] = field(default_factory=dict)  # None: in use
    block_of: dict[Prefix, int] = field(default_factory=dict)
    written: dict[int, Prefix] = field(default_factory=dict)
    clock: int = 0

    def longest(self, chain: TokenChain) -> list[Prefix]:
        found: list[Prefix] = []
        for end in range(BLOCK_SIZE, len(chain), BLOCK_SIZE):
            prefix = chain.salt, tuple(chain.token_ids[:end])
            if prefix not in self.idle_since:
                break
            found.append(prefix)
        return found

    def evictions(self, fresh: int, idle_blocks: int) -> list[Prefix]:
        """Who must go for `fresh` new blocks: the longest idle, once the blocks that hold nothing are used up."""
        idle = {prefix: since for prefix, since in self.idle_since.items() if since is not None}
        nameless = idle_blocks - len(idle)
        return sorted(idle, key=lambda prefix: idle[prefix])[: max(0, fresh - nameless)]


class PrefixCache(RuleBasedStateMachine):
    """Prompts start, grow, end, fail; whatever is cached, found or evicted must be what the oracle says."""

    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(BLOCKS, BLOCK_SIZE)
        self.oracle = Oracle()
        self.running: list[Live] = []
        self.known: set[EngineHash] = set()
        self.unconfirmed: list[Prefix] = []

    @rule(target=live, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9), salt=st.sampled_from([None, "s"]))
    def begin(self, tokens: list[int], salt: str | None) -> object:
        sequence = self.started(TokenChain(tokens, BLOCK_SIZE, salt=salt))
        self.confirm()
        return multiple() if sequence is None else sequence

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def begin_and_fail(self, tokens: list[int]) -> None:
        self.unconfirmed.clear()
        sequence = self.started(TokenChain(tokens, BLOCK_SIZE))
        self.manager.forget_unconfirmed()
        for prefix in self.unconfirmed:
            self.forget(prefix)
        if sequence is not None:
            self.ended(sequence)
        self.confirm()

    @rule(sequence=live, token=st.integers(0, 1))
    def generate(self, sequence: Live, token: int) -> None:
        if sequence not in self.running:
            return
        sequence.chain.append(token)
        missing = self.manager.blocks_for(len(sequence.chain)) - len(sequence.table)
        fresh = self.acquired([], missing)
        if fresh is None:
            self.ended(sequence)
        else:
            sequence.table += fresh
            self.registered(sequence, (len(sequence.chain) - 1) // BLOCK_SIZE)
        self.confirm()

    @rule(sequence=consumes(live))
    def end(self, sequence: Live) -> None:
        if sequence in self.running:
            self.ended(sequence)
        self.confirm()

    @precondition(lambda self: not self.running)
    @rule()
    def clear(self) -> None:
        assert self.manager.clear()
        self.oracle.idle_since.clear()
        self.oracle.block_of.clear()
        self.confirm()

    @invariant()
    def consistent(self) -> None:
        self.manager.check(sequence.table for sequence in self.running)

    def started(self, chain: TokenChain) -> Live | None:
        found = self.oracle.longest(chain)
        blocks = self.manager.find_cached(chain)
        assert [self.oracle.written[block] for block in blocks] == found, "a found block holds another prefix"
        table = self.acquired(found, self.manager.blocks_for(len(chain)) - len(found))
        if table is None:
            return None
        sequence = Live(chain, table)
        self.running.append(sequence)
        self.registered(sequence, len(found))
        return sequence

    def acquired(self, found: list[Prefix], fresh: int) -> list[int] | None:
        held = {block for sequence in self.running for block in sequence.table}
        cached = [self.oracle.block_of[prefix] for prefix in found]
        idle = BLOCKS - len(held | set(cached))
        since = {prefix: self.oracle.idle_since[prefix] for prefix in found}
        self.oracle.idle_since |= dict.fromkeys(found)
        table = self.manager.acquire(cached, fresh)
        assert (table is None) == (fresh > idle)
        if table is None:
            self.oracle.idle_since |= since
            return None
        for prefix in self.oracle.evictions(fresh, idle):
            self.forget(prefix)
        return table

    def registered(self, sequence: Live, first: int) -> None:
        self.manager.register(sequence.chain, sequence.table, first, sequence.full)
        for block, prefix in zip(sequence.table[first:], sequence.prefixes(first, sequence.full), strict=False):
            self.oracle.written[block] = prefix
            if prefix not in self.oracle.idle_since:
                self.oracle.idle_since[prefix] = None
                self.oracle.block_of[prefix] = block
                self.unconfirmed.append(prefix)

    def ended(self, sequence: Live) -> None:
        self.running.remove(sequence)
        self.manager.release(sequence.table)
        held = {block for other in self.running for block in other.table}
        for block in reversed(sequence.table):
            prefix = self.oracle.written.get(block)
            if prefix is not None and self.oracle.block_of.get(prefix) == block and block not in held:
                self.oracle.clock += 1
                self.oracle.idle_since[prefix] = self.oracle.clock

    def forget(self, prefix: Prefix) -> None:
        del self.oracle.idle_since[prefix], self.oracle.block_of[prefix]

    def confirm(self) -> None:
        self.known = replayed(self.known, self.manager.take_events())
        expected = set()
        for salt, tokens in self.oracle.idle_since:
            chain = TokenChain(tokens, BLOCK_SIZE, salt=salt)
            expected.add(hashes(chain, len(tokens) // BLOCK_SIZE)[-1])
        assert self.known == expected == {published_hash(digest) for digest in self.manager.cached_digests()}


PrefixCache.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestPrefixCache = PrefixCache.TestCase
