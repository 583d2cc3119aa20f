"""The index's bound: what goes, what stays, and that the account is that of what there is."""

import tracemalloc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kv_events.events import BlockRemoved, BlockStored
from kv_events.hashing import block_hashes, root_hash
from router.index import PrefixIndex

SIZE = 1
SLOTS = range(2)
ROOMY = 1 << 40
Path = tuple[int, ...]


def hashes(path: Path) -> list[int]:
    return block_hashes(path, SIZE, root_hash())


def stored(path: Path, depth: int = 0) -> BlockStored:
    """The blocks of `path` behind its first `depth` ones; all engines call them alike."""
    names = hashes(path)
    return BlockStored(tuple(names[depth:]), names[depth - 1] if depth else None, path[depth:], SIZE)


def opened(max_bytes: int) -> PrefixIndex:
    index = PrefixIndex(max_bytes=max_bytes)
    for slot in SLOTS:
        index.open(slot)
    return index


EMPTY_BYTES = opened(ROOMY).held_bytes


def depth(index: PrefixIndex, path: Path, slot: int = 0) -> int:
    [(blocks, _)] = index.match(hashes(path), len(path), 1 << slot, 3)
    return blocks


class BoundMachine(RuleBasedStateMachine):
    """With room for a few chains: what engines hold and the index does not was evicted, and nothing continues it."""

    def __init__(self) -> None:
        super().__init__()
        self.index = opened(EMPTY_BYTES + 6_000)
        self.announced: dict[int, set[Path]] = {slot: set() for slot in SLOTS}

    def held(self, slot: int) -> set[Path]:
        names = self.index.engine_blocks(slot)
        return {path for path in self.announced[slot] if hashes(path)[-1] in names}

    @rule(slot=st.sampled_from(SLOTS), blocks=st.lists(st.integers(0, 2), min_size=1, max_size=8), data=st.data())
    def store(self, slot: int, blocks: list[int], data: st.DataObject) -> None:
        path = tuple(blocks)
        held = self.held(slot)
        start = data.draw(st.sampled_from([0, *(i for i in range(1, len(path)) if path[:i] in held)]))
        new = {path[: i + 1] for i in range(start, len(path))}
        self.announced[slot] |= new
        self.index.store(slot, stored(path, start))

    @rule(slot=st.sampled_from(SLOTS), data=st.data())
    def remove(self, slot: int, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.announced[slot] or {(0,)})))
        self.index.remove(slot, BlockRemoved((hashes(path)[-1],)))
        self.announced[slot].discard(path)

    @rule(slot=st.sampled_from(SLOTS))
    def clear(self, slot: int) -> None:
        self.index.clear(slot)
        self.announced[slot].clear()

    @invariant()
    def what_is_gone_is_not_continued(self) -> None:
        self.index.check()
        for slot in SLOTS:
            held = self.held(slot)
            assert len(held) == self.index.stats(slot).blocks
            for path in held:
                parent = path[:-1]
                assert not parent or parent in held or parent not in self.announced[slot]


TestBound = BoundMachine.TestCase
TestBound.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_it_stays_within_the_bound_and_counts_what_went() -> None:
    index = opened(EMPTY_BYTES + 100_000)
    for number in range(2_000):
        index.store(0, stored((number, 1, 2, 3)))
        assert index.held_bytes <= EMPTY_BYTES + 120_000, "a map that grows passes it for a moment"
    assert index.held_bytes <= EMPTY_BYTES + 100_000
    stats = index.stats(0)
    assert stats.evicted > 0
    assert stats.blocks + stats.evicted == 4 * 2_000


def test_the_least_recently_matched_or_stored_goes_first() -> None:
    index = opened(EMPTY_BYTES + 40_000)
    index.store(0, stored((0, 1)))
    index.store(0, stored((1, 1)))
    for number in range(2, 200):
        index.store(0, stored((number, 1)))
        assert depth(index, (0, 1)) == 2, "matched all the time"
    assert depth(index, (1, 1)) == 0
    survivors = [number for number in range(2, 200) if depth(index, (number, 1))]
    assert survivors == list(range(survivors[0], 200))


def test_a_chain_goes_from_its_end() -> None:
    index = opened(EMPTY_BYTES + 60_000)
    long = (7, *range(500))
    index.store(0, stored(long))
    for number in range(100, 140):
        index.store(0, stored((number,)))
    held = index.blocks(0)
    left = sum(block in held for block in hashes(long))
    assert 0 < left < 500
    assert depth(index, long) == left


def test_the_stalest_waits_for_what_continues_it() -> None:
    """The first of a path was stored long before its last, in events of one block, on branches of their own."""
    index = opened(EMPTY_BYTES + 60_000)
    path = tuple(range(20))
    for end in range(1, len(path) + 1):
        index.store(0, stored(path[:end], end - 1))
        index.store(0, stored((*path[: end - 1], 99), end - 1))
    for number in range(100, 160):
        index.store(0, stored((number,)))
        index.check()
        held = index.blocks(0)
        known = [block in held for block in hashes(path)]
        assert known == sorted(known, reverse=True), "a prefix is what stays of it"


def test_one_engine_gone_mad_pushes_out_nobody_else() -> None:
    index = opened(EMPTY_BYTES + 100_000)
    for number in range(20):
        index.store(1, stored((number, 1, 2)))
    for number in range(1_000, 4_000):
        index.store(0, stored((number, 1, 2)))
    assert index.stats(1).blocks == 60
    assert index.stats(1).evicted == 0


def test_a_worker_that_closes_leaves_what_others_hold_and_only_that() -> None:
    index = opened(ROOMY)
    for slot in SLOTS:
        index.store(slot, stored((1, 2, 3)))
    index.store(0, stored((1, 2, 4), 2))
    index.close(0)
    index.check()
    assert depth(index, (1, 2, 3), 1) == 3
    index.clear(1)
    index.open(0)
    assert index.held_bytes == pytest.approx(EMPTY_BYTES, abs=1_000)  # maps keep their room


def test_what_the_engine_goes_on_with_waits_when_its_parent_was_evicted() -> None:
    index = opened(EMPTY_BYTES + 20_000)
    index.store(0, stored((0, 1)))
    for number in range(2, 100):
        index.store(0, stored((number,)))
    index.store(0, stored((0, 1, 2), 2))
    assert (depth(index, (0, 1, 2)), index.stats(0).orphans) == (0, 1)
    index.store(0, stored((0, 1)))
    assert (depth(index, (0, 1, 2)), index.stats(0).orphans) == (3, 0)


@pytest.mark.parametrize("blocks", [4, 64, 512])
def test_the_account_is_what_python_allocates(blocks: int) -> None:
    """Within 15 %, for chains of any length; the tokens of the events are not kept."""
    paths = [(number, *range(1, blocks)) for number in range(40_000 // blocks)]
    index = opened(ROOMY)
    tracemalloc.start()
    try:
        for path in paths:
            index.store(0, stored(path))
        allocated, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index.held_bytes - EMPTY_BYTES == pytest.approx(allocated, rel=0.15)


def test_churn_takes_no_more_than_its_first_round() -> None:
    index = opened(ROOMY)
    sizes = []
    for first in range(0, 11_000, 1_000):
        paths = [(number, *range(1, 16)) for number in range(first, first + 1_000)]
        for path in paths:
            index.store(0, stored(path))
        sizes.append(index.held_bytes)
        for path in paths:
            index.remove(0, BlockRemoved(tuple(reversed(hashes(path)))))
        index.check()
    assert max(sizes[2:]) <= max(sizes[:2])
