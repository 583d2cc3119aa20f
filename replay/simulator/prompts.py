"""Prompts for simulated engines, which read no meaning into tokens: the cheapest that share what the trace shares."""

import struct
from array import array
from collections.abc import Sequence

import numpy as np

from kv_events.hashing import block_hashes
from replay.traces.trace import TraceRequest

VOCABULARY = 1 << 32


def prompt_tokens(request: TraceRequest, block_tokens: int) -> "array[int]":
    """The name of its block and its place in it as one number for each token, modulo the vocabulary.

    Real engines need the tokens of `replay.traces.tokens`, which cost ten times as much to make.
    """
    starts = np.array(request.hash_ids, dtype=np.uint64).astype(np.uint32) * np.uint32(block_tokens)
    places = np.add.outer(starts, np.arange(block_tokens, dtype=np.uint32)).ravel()
    return array("I", places[: request.input_tokens].tobytes())


def digest_blocks(token_ids: Sequence[int], block_size: int, parent: bytes) -> list[bytes]:
    """Names of 8 bytes in place of `cache_digests`' 32: a tenth of the time, and nobody's secrets are at stake."""
    hashes = block_hashes(token_ids, block_size, int.from_bytes(parent[-8:], "big"))
    names = struct.pack(f">{len(hashes)}Q", *hashes)
    return [names[start : start + 8] for start in range(0, len(names), 8)]
