"""The endless cache against brute force: the longest common prefix with anything stored before."""

from hypothesis import given
from hypothesis import strategies as st

from replay.bounds import InfiniteCache

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
