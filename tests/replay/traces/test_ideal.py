"""The bounds of endless caches against brute force."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.traces.generate import small_workloads
from replay.traces.ideal import TokenCache, granularity_table, ideal_hit_ratio
from replay.traces.reader import read_trace

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=12)


@given(SEQUENCES)
def test_token_cache_finds_the_longest_prefix_of_all(sequences):
    cache, stored = TokenCache(), []
    for tokens in sequences:
        usable = tokens[:-1]
        longest = max((n for n in range(len(usable) + 1) for other in stored if other[:n] == usable[:n]), default=0)
        assert cache.hit_tokens(tokens) == longest
        cache.store(tokens)
        stored.append(tokens)


def test_round_robin_over_caches_loses_what_lies_in_another(samples):
    """1100, 1024 and 600 tokens: the second is all cached but for its last token, the third shares one block."""
    trace = read_trace(samples / "mooncake.jsonl")
    assert ideal_hit_ratio(trace) == (0 + 1023 + 512) / 2724
    assert ideal_hit_ratio(trace, caches=2) == 512 / 2724
    assert ideal_hit_ratio(trace, caches=3) == 0


def test_lengths_have_no_hit_ratio(samples):
    with pytest.raises(ValueError, match="azure trace has lengths only"):
        ideal_hit_ratio(read_trace(samples / "azure.csv"))


def test_the_chapters_table():
    """Radix tree, blocks of 16, blocks of 64, in per cent to one digit, as printed there."""
    table = granularity_table(small_workloads())
    assert {name: [f"{100 * ratio:.1f}" for ratio in row.values()] for name, row in table.items()} == {
        "shared-system-prompt": ["89.5", "88.8", "86.0"],
        "multi-turn": ["79.2", "78.6", "76.8"],
        "few-shot": ["89.6", "87.8", "81.1"],
        "parallel-sampling": ["87.1", "84.2", "73.3"],
    }
