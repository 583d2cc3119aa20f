"""Cheap prompts and block names share what the trace shares, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_events.hashing import block_hashes, cache_digests, cache_root, root_hash
from replay.simulator.prompts import answer_token, digest_blocks, prompt_tokens
from replay.traces.tokens import TokenExpander
from replay.traces.trace import Trace, TraceRequest

BLOCK_TOKENS = 6
PATHS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=2, max_size=5)


def named(paths: list[list[int]]) -> list[TraceRequest]:
    """A name for each path from the root, as a trace has it; the last block is partial."""
    names: dict[tuple[int, ...], int] = {}
    return [
        TraceRequest(
            len(path) * BLOCK_TOKENS - 1,
            3,
            tuple(names.setdefault(tuple(path[: end + 1]), len(names)) for end in range(len(path))),
        )
        for path in paths
    ]


@given(PATHS, st.integers(1, 9))
def test_prompts_share_what_those_for_real_engines_share(paths: list[list[int]], block_size: int) -> None:
    requests = named(paths)
    expander = TokenExpander(Trace("test", tuple(requests), BLOCK_TOKENS, True), range(1 << 32))
    cheap = [block_hashes(prompt_tokens(each, BLOCK_TOKENS), block_size, root_hash()) for each in requests]
    real = [block_hashes(expander.token_ids(each), block_size, root_hash()) for each in requests]
    assert partition(cheap) == partition(real)


@given(PATHS, st.integers(1, 9), st.lists(st.integers(0, 30), min_size=5, max_size=5))
def test_cheap_names_tell_apart_what_real_ones_do(paths: list[list[int]], block_size: int, answers: list[int]) -> None:
    sequences = []
    for number, (request, answer) in enumerate(zip(named(paths), answers, strict=False)):
        tokens = prompt_tokens(request, BLOCK_TOKENS)
        tokens.extend([answer_token(number)] * answer)
        sequences.append(tokens)
    root = cache_root()
    cheap = [digest_blocks(tokens, block_size, root) for tokens in sequences]
    real = [cache_digests(tokens, block_size, root) for tokens in sequences]
    assert partition(cheap) == partition(real)


@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_names_do_not_depend_on_when_they_are_asked_for(cut: int) -> None:
    tokens = prompt_tokens(named([[0, 1]])[0], BLOCK_TOKENS)
    tokens.extend([answer_token(4)] * 20)
    whole = digest_blocks(tokens, 4, cache_root())
    first = digest_blocks(tokens[: cut * 4], 4, cache_root())
    assert [*first, *digest_blocks(tokens[cut * 4 :], 4, first[-1])] == whole


def partition(chains: list[list[int]] | list[list[bytes]]) -> list[list[int]]:
    """The chains with each name replaced by the number of its first use: equal for the same sharing."""
    numbers: dict[int | bytes, int] = {}
    return [[numbers.setdefault(name, len(numbers)) for name in chain] for chain in chains]
