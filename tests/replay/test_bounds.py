"""Caches against brute force: the longest common prefix with anything stored before, every way to evict."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.bounds import BeladyBlocks, InfiniteCache, LruBlocks, bounds
from replay.traces.trace import Trace, TraceRequest

SEQUENCES = st.lists(st.lists(st.integers(0, 1), max_size=20), max_size=12)


def common_prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(SEQUENCES, st.integers(1, 5))
def test_hits_are_the_longest_stored_prefix_in_whole_blocks(sequences, block_size):
    cache, stored = InfiniteCache(block_size), []
    for tokens in sequences:
        longest = max((common_prefix(tokens, other) for other in stored), default=0)
        usable = min(longest, max(0, len(tokens) - 1))
        assert cache.hit_tokens(tokens) == usable - usable % block_size
        cache.store(tokens)
        stored.append(tokens)


def test_a_prompt_of_whole_blocks_still_computes_its_last_token():
    cache = InfiniteCache(16)
    cache.store(range(64))
    assert (cache.hit_tokens(range(64)), cache.hit_tokens(range(65)), cache.blocks) == (48, 64, 4)


PATHS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=3), min_size=1, max_size=6)


def named(paths: list[list[int]]) -> list[tuple[int, ...]]:
    """A name for each path from the root, as a trace has it."""
    names: dict[tuple[int, ...], int] = {}
    return [tuple(names.setdefault(tuple(path[: end + 1]), len(names)) for end in range(len(path))) for path in paths]


def hits(blocks: LruBlocks | BeladyBlocks, prompts: list[tuple[int, ...]]) -> int:
    found = 0
    for prompt in prompts:
        found += blocks.held(prompt)
        blocks.store(prompt)
    return found


def most_hits(capacity: int, prompts: list[tuple[int, ...]]) -> int:
    """By trying every set of blocks that may stay after each prompt."""

    @cache
    def best(number: int, held: frozenset[int]) -> int:
        if number == len(prompts):
            return 0
        prompt = prompts[number]
        found = next((place for place, name in enumerate(prompt) if name not in held), len(prompt))
        return found + max(best(number + 1, kept) for kept in choices(held | set(prompt)))

    def choices(blocks: frozenset[int]) -> set[frozenset[int]]:
        if len(blocks) <= capacity:
            return {blocks}
        return {each for name in blocks for each in choices(blocks - {name})}

    return best(0, frozenset())


@settings(max_examples=60, deadline=None)
@given(PATHS, st.integers(1, 4))
def test_no_eviction_has_more_hits_than_beladys(paths: list[list[int]], capacity: int) -> None:
    prompts = named(paths)
    assert hits(BeladyBlocks(capacity, prompts), prompts) == most_hits(capacity, prompts)


@given(PATHS, st.integers(1, 6))
def test_lru_keeps_what_was_used_last_and_beginnings_before_ends(paths: list[list[int]], capacity: int) -> None:
    blocks, used = LruBlocks(capacity), []
    for prompt in named(paths):
        expected = next((place for place, name in enumerate(prompt) if name not in used), len(prompt))
        assert blocks.held(prompt) == expected
        blocks.store(prompt)
        used = [name for name in used if name not in prompt] + list(reversed(prompt))
        used = used[-capacity:]


def test_bounds_of_a_trace() -> None:
    """Two prompts in turn, of two blocks that return and two that do not: four of room are enough for whoever knows."""
    rows = [(1, 2), (3, 4), (1, 2), (3, 4)]
    trace = Trace("test", tuple(TraceRequest(21, 10, (*names, 10 + i)) for i, names in enumerate(rows)), 10, True)
    found = bounds(trace, 1_000_000)
    assert found is not None
    assert found.infinite == found.pooled_lru == pytest.approx(40 / 84)
    tight = bounds(trace, 40)
    assert tight is not None
    assert tight.pooled_lru == 0
    assert tight.pooled_belady == found.infinite


def test_lengths_alone_have_no_bounds() -> None:
    assert bounds(Trace("azure", (TraceRequest(5, 1, (0,)),), 10, False), 100) is None
