"""Expanded prompts agree in their tokens where they agree in their blocks, and nowhere else."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from kv_events.hashing import block_hashes
from replay.bounds import InfiniteCache
from replay.traces.ideal import hit_ratio, ideal_hit_ratio
from replay.traces.reader import read_trace
from replay.traces.tokens import TokenExpander
from replay.traces.trace import Trace, TraceRequest

VOCABULARY = range(1000, 30000)
SPLITMIX64 = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)
"""Its first numbers from state 0, as its reference implementation prints them."""


def trace_of(paths: list[list[int]], lengths: list[int], block_tokens: int) -> Trace:
    """Prompts along paths of a tree; a node's name is its path."""
    names: dict[tuple[int, ...], int] = {}
    requests = []
    for path, length in zip(paths, lengths, strict=True):
        ids = [names.setdefault(tuple(path[: depth + 1]), len(names)) for depth in range(len(path))]
        requests.append(TraceRequest((len(path) - 1) * block_tokens + length, 1, tuple(ids)))
    return Trace("test", tuple(requests), block_tokens, has_prefixes=True)


PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=6)


@given(PATHS, st.data())
def test_tokens_agree_exactly_where_blocks_do(paths, data):
    lengths = [data.draw(st.integers(1, 16)) for _ in paths]
    trace = trace_of(paths, lengths, 16)
    expander = TokenExpander(trace, VOCABULARY)
    prompts = [expander.token_ids(request) for request in trace.requests]
    for request, prompt in zip(trace.requests, prompts, strict=True):
        assert len(prompt) == request.input_tokens
        assert set(prompt) <= set(VOCABULARY)
        for other, tokens in zip(trace.requests, prompts, strict=True):
            for block, (one, two) in enumerate(zip(request.hash_ids, other.hash_ids, strict=False)):
                here, there = prompt[16 * block : 16 * block + 16], tokens[16 * block : 16 * block + 16]
                shorter = min(len(here), len(there))
                assert one != two or here[:shorter] == there[:shorter]
                assert one == two or shorter < 4 or here[:shorter] != there[:shorter]  # chance: 1 in 29000**4


@given(PATHS)
def test_a_cache_of_tokens_finds_what_the_names_say(paths):
    """The bound by names against the bound by tokens, for prompts one token longer than their blocks."""
    trace = trace_of([[*path, 1000 + place] for place, path in enumerate(paths)], [1] * len(paths), 16)
    expander = TokenExpander(trace, VOCABULARY)
    prompts = [expander.token_ids(request) for request in trace.requests]
    assert hit_ratio(prompts, InfiniteCache(16)) == ideal_hit_ratio(trace)


def test_every_process_makes_the_same_tokens(samples):
    trace = read_trace(samples / "mooncake.jsonl")
    first, second, third = (TokenExpander(trace, VOCABULARY).token_ids(request) for request in trace.requests)
    assert first[:3] == array("I", [1000 + number % 29000 for number in SPLITMIX64])
    assert second == first[:1024]
    assert third[:512] == first[:512]
    assert block_hashes(third, 64, 0)[:8] == block_hashes(first, 64, 0)[:8]


def test_a_vocabulary_in_steps():
    trace = trace_of([[1, 2]], [16], 16)
    assert set(TokenExpander(trace, range(5, 50, 10)).token_ids(trace.requests[0])) <= {5, 15, 25, 35, 45}


def test_another_seed_makes_other_tokens():
    trace = trace_of([[1, 2]], [16], 16)
    first, again, other = (TokenExpander(trace, VOCABULARY, seed).token_ids(trace.requests[0]) for seed in (1, 1, 2))
    assert first == again
    assert first[:4] != other[:4]
