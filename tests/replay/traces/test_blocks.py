"""Names of blocks against what they stand for: whole prefixes, in blocks of any size."""

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from replay.traces.blocks import BlockNames, rechunked
from replay.traces.trace import Trace, TraceRequest

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=30)
SIZES = st.integers(1, 12)


def named(prompts: list[list[int]], block_tokens: int) -> Trace:
    names, requests = BlockNames(), []
    for prompt in prompts:
        contents = [tuple(prompt[start : start + block_tokens]) for start in range(0, len(prompt), block_tokens)]
        requests.append(TraceRequest(len(prompt), 1, tuple(names.chained(contents, None))))
    return Trace("test", tuple(requests), block_tokens, has_prefixes=True)


def prefixes(prompt: list[int], block_tokens: int) -> list[tuple[int, ...]]:
    ends = [*range(block_tokens, len(prompt), block_tokens), len(prompt)]
    return [tuple(prompt[:end]) for end in ends]


@given(st.lists(TOKENS, max_size=8), SIZES)
def test_a_name_stands_for_a_whole_prefix(prompts, block_tokens):
    trace = named(prompts, block_tokens)
    by_name: dict[int, tuple[int, ...]] = {}
    for prompt, request in zip(prompts, trace.requests, strict=True):
        for name, prefix in zip(request.hash_ids, prefixes(prompt, block_tokens), strict=True):
            assert by_name.setdefault(name, prefix) == prefix
    assert len(set(by_name.values())) == len(by_name)
    assert list(by_name) == list(range(len(by_name)))  # by first use


@given(st.lists(TOKENS, max_size=8), SIZES, SIZES)
def test_larger_multiples_lose_nothing(prompts, block_tokens, factor):
    """The same equalities between names as if the prompts had been cut that way at first."""
    larger = rechunked(named(prompts, block_tokens), block_tokens * factor)
    straight = named(prompts, block_tokens * factor)
    pairs = {
        (one, other)
        for a, b in zip(larger.requests, straight.requests, strict=True)
        for one, other in zip(a.hash_ids, b.hash_ids, strict=True)
    }
    assert len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})


@given(st.lists(TOKENS, max_size=8), SIZES, SIZES)
def test_other_sizes_never_share_more_than_the_tokens_do(prompts, block_tokens, size):
    trace = rechunked(named(prompts, block_tokens), size)
    for a, first in zip(prompts, trace.requests, strict=True):
        assert len(first.hash_ids) == ceil(len(a) / size)
        for b, second in zip(prompts, trace.requests, strict=True):
            shared = [x for x, y in zip(first.hash_ids, second.hash_ids, strict=False) if x == y]
            assert first.hash_ids[: len(shared)] == tuple(shared)  # a beginning, whole
            end = min(len(shared) * size, len(a), len(b))
            assert a[:end] == b[:end]
            common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            assert len(shared) >= common // block_tokens * block_tokens // size


def test_scopes_and_fresh_names_share_nothing():
    names = BlockNames()
    assert names.chained("ab", None) == [0, 1]
    assert list(names.fresh(2)) == [2, 3]
    assert names.chained("ab", "session") == [4, 5]
    assert names.chained("abc", None) == [0, 1, 6]
    assert names.chained("ba", None) == [7, 8]
