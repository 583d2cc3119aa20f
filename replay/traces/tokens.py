"""Token ids for prompts of which a trace has only the names of their blocks."""

from array import array

import numpy as np
from numpy.typing import NDArray

from replay.traces.trace import Trace, TraceRequest


class TokenExpander:
    """Makes prompts whose tokens agree exactly where the names of their blocks do.

    So real engines and routers, whatever their block size, find the same sharing as the trace has. A token depends on
    its block's name, its place in the block and the vocabulary alone: every run and every process makes the same.
    """

    def __init__(self, trace: Trace, vocabulary: range) -> None:
        """`vocabulary`: the token ids to use, best without a model's special ones, and thousands of them: two blocks
        agree by chance in their first token once in its length."""
        self._block_tokens, self._vocabulary = trace.block_tokens, vocabulary

    def token_ids(self, request: TraceRequest) -> "array[int]":
        """`request.input_tokens` ids, as unsigned 32-bit integers."""
        starts: NDArray[np.uint64] = np.array(request.hash_ids, dtype=np.uint64) * np.uint64(self._block_tokens)
        places: NDArray[np.uint64] = np.add.outer(starts, np.arange(self._block_tokens, dtype=np.uint64))
        drawn = _mixed(places.ravel()[: request.input_tokens]) % np.uint64(len(self._vocabulary))
        tokens = drawn * np.uint64(self._vocabulary.step) + np.uint64(self._vocabulary.start)
        return array("I", tokens.astype(np.uint32).tobytes())


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea, Flood 2014), a random number for each state: fast over arrays, and without a cache."""
    values = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
