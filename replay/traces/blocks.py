"""Names for blocks of prompts: a name stands for the whole prefix that ends with its block.

That holds for Mooncake's and Dynamo's hashes as they are, but not for Bailian's, which say only what is in the block:
there the same hash after another beginning is another prefix. So all hashes are chained anew, whatever they were.
"""

from collections.abc import Hashable, Iterable
from dataclasses import replace
from math import ceil, gcd

from replay.traces.trace import Trace


class BlockNames:
    """Hands out names, 0, 1, ... in the order of first use. Holds one entry for each distinct prefix of the trace."""

    def __init__(self) -> None:
        self._names: dict[tuple[Hashable, Hashable], int] = {}
        self._count = 0

    def chained(self, hashes: Iterable[Hashable], scope: str | None) -> list[int]:
        """One name for each block, the same as before exactly after the same hashes in the same scope."""
        names: list[int] = []
        parent: Hashable = scope
        for each in hashes:
            link = (parent, each)
            name = self._names.get(link)
            if name is None:
                name = self._names[link] = self._count
                self._count += 1
            names.append(name)
            parent = name
        return names

    def fresh(self, blocks: int) -> range:
        """Names that no other prompt has."""
        self._count += blocks
        return range(self._count - blocks, self._count)


def rechunked(trace: Trace, block_tokens: int) -> Trace:
    """The same requests with names for blocks of another size.

    Exact where the trace's blocks divide the new ones. Where they do not, a new block that lies across the end of what
    two prompts share counts as not shared, so that too little is shared, never too much.
    """
    if block_tokens == trace.block_tokens:
        return trace
    part_tokens = gcd(block_tokens, trace.block_tokens)
    parts = trace.block_tokens // part_tokens

    def names(hash_ids: tuple[int, ...], input_tokens: int) -> tuple[int, ...]:
        ends = (min(end, input_tokens) for end in range(block_tokens, input_tokens + block_tokens, block_tokens))
        lasts = (ceil(end / part_tokens) - 1 for end in ends)
        return tuple(hash_ids[last // parts] * parts + last % parts for last in lasts)

    requests = tuple(replace(r, hash_ids=names(r.hash_ids, r.input_tokens)) for r in trace.requests)
    return replace(trace, requests=requests, block_tokens=block_tokens)
