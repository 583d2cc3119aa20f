"""The index against brute force: a dict of names and paths for each slot, and a walk that compares tokens."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kv_events.events import BlockRemoved, BlockStored
from kv_events.hashing import block_hashes, root_hash
from router.index import Edge, PrefixIndex

SIZE = 2
SLOTS = range(3)
ROOT = root_hash()

type_path = tuple[int, ...]
paths = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)  # one token value a block: few, so they collide


def tokens(path: type_path) -> tuple[int, ...]:
    return tuple(token for block in path for token in (block, block + 10))


def name(slot: int, path: type_path) -> int:
    """What a slot's engine calls the block at the end of `path`: its own, not equal between engines."""
    return hash((slot, path)) & (2**64 - 1)


def stored(slot: int, path: type_path, parent_depth: int) -> BlockStored:
    """The blocks of `path` behind its first `parent_depth` ones, by the slot's own names."""
    return called([name(slot, path[: i + 1]) for i in range(len(path))], path, parent_depth)


def called(names: list[int], path: type_path, parent_depth: int) -> BlockStored:
    """The blocks of `path` behind its first `parent_depth` ones; `names` are those of all its blocks."""
    return BlockStored(
        block_hashes=tuple(names[parent_depth:]),
        parent_block_hash=names[parent_depth - 1] if parent_depth else None,
        token_ids=tokens(path[parent_depth:]),
        block_size=SIZE,
    )


def prompt_hashes(path: type_path) -> list[int]:
    return block_hashes(tokens(path), SIZE, ROOT)


def depths(index: PrefixIndex, hashes: list[int], slots: int, trusted: int) -> dict[int, int]:
    """How many blocks of a prompt each slot has; each must be told once."""
    ends = index.match(hashes, len(hashes), slots, trusted)
    told = [(slot, depth) for depth, mask in ends for slot in SLOTS if mask >> slot & 1]
    assert len(told) == len(dict(told))
    assert sum(mask for _, mask in ends) == slots
    return dict(told)


class IndexMachine(RuleBasedStateMachine):
    """Engines that name blocks alike, or each in a way of its own, or with a few numbers that come to mean others."""

    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex()
        self.held: dict[int, dict[int, type_path]] = {slot: {} for slot in SLOTS}  # by name
        self.leased: dict[int, list[type_path]] = {slot: [] for slot in SLOTS}
        for slot in SLOTS:
            self.index.open(slot)

    @rule(slot=st.sampled_from(SLOTS), path=paths, alike=st.booleans(), data=st.data())
    def store(self, slot: int, path: type_path, alike: bool, data: st.DataObject) -> None:
        self.announce(slot, path, [name(0 if alike else slot, path[: i + 1]) for i in range(len(path))], data)

    @rule(slot=st.sampled_from(SLOTS), path=paths, data=st.data())
    def store_under_few_names(self, slot: int, path: type_path, data: st.DataObject) -> None:
        names = st.lists(st.integers(0, 9), min_size=len(path), max_size=len(path))
        self.announce(slot, path, data.draw(names), data)

    def announce(self, slot: int, path: type_path, names: list[int], data: st.DataObject) -> None:
        held = self.held[slot]
        parents = sorted(known for known, of in held.items() if of == path[: len(of)] and len(of) < len(path))
        parent = data.draw(st.sampled_from([None, *parents]))
        depth = 0 if parent is None else len(held[parent])
        if parent is not None:
            names[depth - 1] = parent
        self.index.store(slot, called(names, path, depth))
        for i in range(depth, len(path)):
            if held.get(names[i]) != path[: i + 1]:
                held.pop(names[i], None)
                if i and names[i - 1] not in held:
                    break  # the name was that of the block before
                held[names[i]] = path[: i + 1]

    @rule(slot=st.sampled_from(SLOTS), data=st.data())
    def remove(self, slot: int, data: st.DataObject) -> None:
        """Anywhere in a path, held or not: holes are allowed, and a name that means nothing is harmless."""
        known = sorted({12345, *range(3), *(name for held in self.held.values() for name in held)})
        gone = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=4))
        self.index.remove(slot, BlockRemoved(tuple(gone)))
        for each in gone:
            self.held[slot].pop(each, None)

    @rule(slot=st.sampled_from(SLOTS))
    def clear(self, slot: int) -> None:
        self.index.clear(slot)
        self.held[slot].clear()

    @rule(slot=st.sampled_from(SLOTS))
    def reopen(self, slot: int) -> None:
        self.index.close(slot)
        self.index.open(slot)
        self.held[slot].clear()

    @rule(target=leases, slot=st.sampled_from(SLOTS), path=paths)
    def lease(self, slot: int, path: type_path) -> tuple[int, type_path]:
        self.index.lease(slot, prompt_hashes(path))
        self.leased[slot].append(path)
        return slot, path

    @rule(lease=consumes(leases))
    def end_lease(self, lease: tuple[int, type_path]) -> None:
        slot, path = lease
        self.index.end_lease(slot, prompt_hashes(path))
        self.leased[slot].remove(path)

    @rule(path=paths, trusted=st.integers(0, 7), mask=st.integers(0, 7))
    def match(self, path: type_path, trusted: int, mask: int) -> None:
        expected = {slot: self.depth(slot, path, bool(trusted >> slot & 1)) for slot in SLOTS if mask >> slot & 1}
        assert depths(self.index, prompt_hashes(path), mask, trusted) == expected

    def depth(self, slot: int, path: type_path, trusted: bool) -> int:
        for i in range(len(path)):
            prefix = path[: i + 1]
            leased = any(other[: i + 1] == prefix for other in self.leased[slot])
            if not leased and not (trusted and prefix in self.held[slot].values()):
                return i
        return len(path)

    @invariant()
    def consistent(self) -> None:
        self.index.check()
        for slot in SLOTS:
            paths = set(self.held[slot].values())
            assert self.index.engine_blocks(slot) == self.held[slot].keys()
            assert self.index.blocks(slot) == {prompt_hashes(path)[-1] for path in paths}
            assert self.index.stats(slot).blocks == len(paths) == sum(edge.blocks for edge in self.index.tree(slot))


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


@pytest.fixture
def index() -> PrefixIndex:
    index = PrefixIndex()
    index.open(0)
    index.open(1)
    return index


def depth(index: PrefixIndex, path: type_path, slot: int = 0) -> int:
    return depths(index, prompt_hashes(path), 1 << slot, 3)[slot]


def test_a_hole_ends_the_match_and_refilling_it_restores_what_lies_behind(index: PrefixIndex) -> None:
    path = (0, 1, 0, 1)
    index.store(0, stored(0, path, 0))
    index.remove(0, BlockRemoved((name(0, path[:2]),)))
    assert depth(index, path) == 1
    index.store(0, stored(0, path[:2], 1))
    assert depth(index, path) == 4


def test_a_block_behind_one_that_is_only_expected_counts(index: PrefixIndex) -> None:
    path = (0, 1, 0)
    index.store(0, stored(0, path, 0))
    index.remove(0, BlockRemoved((name(0, path[:1]),)))
    assert depth(index, path) == 0
    index.lease(0, prompt_hashes(path[:1]))
    assert depth(index, path) == 3
    index.end_lease(0, prompt_hashes(path[:1]))


def test_removal_by_one_worker_leaves_the_other(index: PrefixIndex) -> None:
    for slot in (0, 1):
        index.store(slot, stored(slot, (0, 1), 0))
    index.remove(0, BlockRemoved((name(0, (0, 1)),)))
    assert (depth(index, (0, 1), 0), depth(index, (0, 1), 1)) == (1, 2)


def test_orphans_wait_for_their_parent_in_any_order(index: PrefixIndex) -> None:
    path = (0, 0, 1, 1, 0)
    for parent in (4, 3, 1):
        index.store(0, stored(0, path[: parent + 1] if parent > 1 else path[:3], parent))
    assert (depth(index, path), index.stats(0).orphans) == (0, 3)
    index.store(0, stored(0, path[:1], 0))
    assert (depth(index, path), index.stats(0).orphans) == (5, 0)


def test_an_orphan_evicted_while_it_waits_does_not_come_back(index: PrefixIndex) -> None:
    index.store(0, stored(0, (0, 1), 1))
    index.remove(0, BlockRemoved((name(0, (0, 1)),)))
    index.store(0, stored(0, (0,), 0))
    assert depth(index, (0, 1)) == 1


def test_orphans_are_bounded(index: PrefixIndex) -> None:
    for i in range(3000):
        index.store(0, BlockStored((i,), 10**9 + i, (1, 2), SIZE))
    stats = index.stats(0)
    assert stats.orphans == 1024
    assert stats.orphans_dropped == 3000 - 1024


def test_a_child_of_an_evicted_block_is_still_placed(index: PrefixIndex) -> None:
    """A second copy may live on under a name whose first copy was evicted; what is stored behind it counts with it."""
    index.store(0, stored(0, (0, 1), 0))
    index.remove(0, BlockRemoved((name(0, (0, 1)),)))
    index.store(0, stored(0, (0, 1, 1), 2))
    assert depth(index, (0, 1, 1)) == 1
    index.store(0, stored(0, (0, 1), 1))
    assert depth(index, (0, 1, 1)) == 3


def test_one_of_ours_under_two_engine_names_stays_until_both_are_gone(index: PrefixIndex) -> None:
    for engine_name in (71, 72):
        index.store(0, BlockStored((engine_name,), None, tokens((0,)), SIZE))
    index.remove(0, BlockRemoved((71,)))
    assert depth(index, (0,)) == 1
    index.check()
    index.remove(0, BlockRemoved((72,)))
    assert depth(index, (0,)) == 0


def test_other_tiers_neither_add_nor_remove(index: PrefixIndex) -> None:
    event = stored(0, (0,), 0)
    index.store(0, BlockStored(event.block_hashes, None, event.token_ids, SIZE, medium="CPU"))
    assert depth(index, (0,)) == 0
    index.store(0, event)
    index.remove(0, BlockRemoved(event.block_hashes, medium="CPU"))
    assert depth(index, (0,)) == 1


def test_adapter_and_salt_are_other_prefixes(index: PrefixIndex) -> None:
    event = stored(0, (0, 1), 0)
    index.store(0, BlockStored(event.block_hashes, None, event.token_ids, SIZE, cache_salt="tenant-a"))
    salted = block_hashes(tokens((0, 1)), SIZE, root_hash(salt="tenant-a"))
    assert depth(index, (0, 1)) == 0
    assert depths(index, salted, 1, 1) == {0: 2}


def test_tree_shows_runs_and_branches(index: PrefixIndex) -> None:
    index.store(0, stored(0, (0, 0, 1), 0))
    index.store(0, stored(0, (0, 0, 0, 0), 2))
    root, *branches = index.tree(0)
    assert root == Edge(prompt_hashes((0,))[0], None, 2)
    assert {(edge.parent, edge.blocks) for edge in branches} == {(root.first, 1), (root.first, 2)}


def test_a_deep_tree_needs_no_deep_stack(index: PrefixIndex) -> None:
    path = tuple(i % 2 for i in range(20_000))
    index.store(0, stored(0, path[:1], 0))
    index.store(0, BlockStored(tuple(range(20_000)), None, tokens(path), SIZE))
    assert index.tree(0)[0].blocks == 20_000
    assert depth(index, path) == 20_000
