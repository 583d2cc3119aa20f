"""The hit ratios that endless caches would reach: what a trace has to share, and what block sizes and blind placement
lose of it."""

from bisect import bisect_left, insort
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Protocol

from replay.bounds import InfiniteCache
from replay.traces.trace import Trace

BLOCK_SIZES = (16, 64)


def ideal_hit_ratio(trace: Trace, caches: int = 1) -> float:
    """Hit tokens by prompt tokens with `caches` endless caches served in turn, as round robin does; 1 is the ceiling.

    Prompts only, for a trace does not name the blocks of answers: an engine, which keeps those too, may reach more in
    long conversations. A prompt's last token is always computed. Raises ValueError for a trace of lengths only.
    """
    if not trace.has_prefixes:
        raise ValueError(f"the {trace.format} trace has lengths only: what its prompts share cannot be known")
    held: list[set[int]] = [set() for _ in range(caches)]
    hit_tokens = 0
    for place, request in enumerate(trace.requests):
        cache = held[place % caches]
        hit_tokens += min(held_blocks(request.hash_ids, cache) * trace.block_tokens, request.input_tokens - 1)
        cache.update(request.hash_ids)
    return hit_tokens / trace.input_tokens


def held_blocks(hash_ids: Sequence[int], held: Container[int]) -> int:
    """How many blocks at a prompt's beginning are held, if whatever is held is held with all before it.

    A name stands for its whole prefix: where one is not held, none behind it is, so a binary search finds the end.
    """
    return bisect_left(hash_ids, True, key=lambda name: name not in held)


class PromptCache(Protocol):
    def hit_tokens(self, prompt: Sequence[int]) -> int: ...

    def store(self, token_ids: Sequence[int]) -> None: ...


class TokenCache:
    """What an endless radix tree with pages of one token holds (SGLang's, by default): every prefix of every prompt.

    No tree is needed for that: in sorted order, the longest common prefix is with one of the two neighbours. Holds the
    prompts that were stored.
    """

    def __init__(self) -> None:
        self._prompts: list[tuple[int, ...]] = []

    def hit_tokens(self, prompt: Sequence[int]) -> int:
        usable = tuple(prompt[:-1])
        place = bisect_left(self._prompts, usable)
        neighbours = self._prompts[max(0, place - 1) : place + 1]
        return max((common_prefix(usable, neighbour) for neighbour in neighbours), default=0)

    def store(self, token_ids: Sequence[int]) -> None:
        insort(self._prompts, tuple(token_ids))


def common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many tokens both begin with."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def hit_ratio(prompts: Iterable[Sequence[int]], cache: PromptCache) -> float:
    """Hit tokens by prompt tokens, each prompt stored after it was looked up; prompts as token ids."""
    hits = total = 0
    for prompt in prompts:
        hits += cache.hit_tokens(prompt)
        total += len(prompt)
        cache.store(prompt)
    return hits / total


def granularity_table(workloads: Mapping[str, Trace]) -> dict[str, dict[str, float]]:
    """For each workload its hit ratio by a radix tree of tokens and by blocks of 16 and 64 tokens.

    With generate.small_workloads it is the table of the chapter that they come from.
    """

    def row(trace: Trace) -> dict[str, float]:
        caches: dict[str, PromptCache] = {"radix": TokenCache()}
        caches |= {str(size): InfiniteCache(size) for size in BLOCK_SIZES}
        prompts = [request.prompt for request in trace.requests if isinstance(request.prompt, tuple)]
        return {name: hit_ratio(prompts, cache) for name, cache in caches.items()}

    return {name: row(trace) for name, trace in workloads.items()}
