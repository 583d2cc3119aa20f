"""Token ids for prompts of which a trace has only the names of their blocks."""

from array import array

import numpy as np
from numpy.typing import NDArray

from replay.traces.trace import Trace, TraceRequest

SEED_SHIFT = np.uint64(40)
"""A trace has fewer tokens in its blocks than 2 to this power."""
MAX_SEED = (1 << 24) - 1


class TokenExpander:
    """Makes prompts whose tokens agree exactly where the names of their blocks do.

    So real engines and routers, whatever their block size, find the same sharing as the trace has. A token depends on
    its block's name, its place in the block, the vocabulary and the seed alone: every process makes the same.
    """

    def __init__(self, trace: Trace, vocabulary: range, seed: int = 0) -> None:
        """`vocabulary`: the token ids to use, best without a model's special ones, and thousands of them: two blocks
        agree by chance in their first token once in its length."""
        self._block_tokens, self._vocabulary, self._seed = trace.block_tokens, vocabulary, seed

    def token_ids(self, request: TraceRequest) -> "array[int]":
        """`request.input_tokens` ids, as unsigned 32-bit integers."""
        numbers = drawn(request, self._block_tokens, request.input_tokens, len(self._vocabulary), self._seed)
        tokens = numbers * np.uint64(self._vocabulary.step) + np.uint64(self._vocabulary.start)
        return array("I", tokens.astype(np.uint32).tobytes())


def drawn(request: TraceRequest, block_size: int, count: int, choices: int, seed: int) -> NDArray[np.uint64]:
    """The first `count` of `block_size` numbers under `choices` for each block: by its name and place, and `seed`."""
    starts: NDArray[np.uint64] = np.array(request.hash_ids, dtype=np.uint64) * np.uint64(block_size)
    places: NDArray[np.uint64] = np.add.outer(starts, np.arange(block_size, dtype=np.uint64))
    states = places.ravel()[:count] + (np.uint64(seed) << SEED_SHIFT)
    return _mixed(states) % np.uint64(choices)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea, Flood 2014), a random number for each state: fast over arrays, and without a cache."""
    values = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
