"""What the best placement could reach, whatever the router does: hit ratios of one cache for the whole fleet."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import repeat
from math import ceil, inf

from kv_events.hashing import block_hashes, root_hash
from replay.traces.trace import Trace


class InfiniteCache:
    """One prefix cache for the whole fleet that never evicts. Full blocks only, and a prompt's last token is computed.

    Holds one hash for each distinct block of what was stored: bounded by the workload, and meant for nothing else.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._blocks = LruBlocks(None)

    @property
    def blocks(self) -> int:
        return len(self._blocks)

    def hit_tokens(self, prompt: Sequence[int]) -> int:
        """How many tokens of `prompt` need not be computed."""
        return self._blocks.held(self._hashes(prompt[:-1])) * self._block_size

    def store(self, token_ids: Sequence[int]) -> None:
        self._blocks.store(self._hashes(token_ids))

    def _hashes(self, token_ids: Sequence[int]) -> list[int]:
        return block_hashes(token_ids, self._block_size, root_hash())


class LruBlocks:
    """Names of blocks, of which the least recently used go first; `capacity` None: none ever goes.

    A prompt's last block counts as used before its first, as if it were freed in that order: a cache loses the end of
    a prefix before its beginning.
    """

    def __init__(self, capacity: int | None) -> None:
        self._capacity = inf if capacity is None else capacity
        self._used: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._used)

    def held(self, names: Sequence[int]) -> int:
        """How many blocks at the beginning of a prompt are there."""
        return next((place for place, name in enumerate(names) if name not in self._used), len(names))

    def store(self, names: Sequence[int]) -> None:
        for name in reversed(names):
            self._used[name] = None
            self._used.move_to_end(name)
        while len(self._used) > self._capacity:
            self._used.popitem(last=False)


class BeladyBlocks:
    """Names of blocks, of which that one goes first which is needed last: no eviction has more hits (Belady 1966).

    It knows what comes, `sequences`, and must be asked for them in that order. A block's prefix is needed
    whenever the block is, so along a sequence the next use comes ever later, and blocks with the same one make a run;
    the end of a run goes before its beginning, here, too.
    """

    def __init__(self, capacity: int, sequences: Sequence[Sequence[int]]) -> None:
        self._capacity = capacity
        self._needed = list(_next_uses(sequences))  # the last first
        self._held: set[int] = set()
        self._farthest: list[tuple[float, int, Sequence[int]]] = []  # negated: the run's next use, its depth; the run

    def held(self, names: Sequence[int]) -> int:
        return next((place for place, name in enumerate(names) if name not in self._held), len(names))

    def store(self, names: Sequence[int]) -> None:
        self._held.update(names)
        needed, first = self._needed.pop(), 0
        while first < len(names):
            end = bisect_right(needed, needed[first], first)
            heappush(self._farthest, (-needed[first], -first, names[first:end]))
            first = end
        while len(self._held) > self._capacity:
            self._evict(len(self._held) - self._capacity)

    def _evict(self, most: int) -> None:
        """The end of the run that is needed last; all runs whose time has come are behind those that are held."""
        when, depth, run = heappop(self._farthest)
        self._held.difference_update(run[-most:])
        if len(run) > most:
            heappush(self._farthest, (when, depth, run[:-most]))


def _next_uses(sequences: Sequence[Sequence[int]]) -> Iterator[list[float]]:
    """From the last sequence to the first, the number of the next one that has each of its names; infinite for none."""
    next_use: dict[int, float] = {}
    for number in range(len(sequences) - 1, -1, -1):
        names = sequences[number]
        yield [*map(next_use.get, names, repeat(inf))]
        next_use.update(dict.fromkeys(names, number))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Shares of all prompt tokens that one cache would have: an endless one, and one of the fleet's size with the
    eviction that engines have, or the best there could be. None for a trace of lengths only."""

    infinite: float
    pooled_lru: float
    pooled_belady: float


def bounds(trace: Trace, capacity_tokens: int) -> Bounds | None:
    """Counted in the trace's own blocks. Each request is stored as it arrives, with its answer, which takes space."""
    if not trace.has_prefixes:
        return None
    capacity = capacity_tokens // trace.block_tokens
    sequences = _with_answers(trace)
    return Bounds(
        infinite=_hit_ratio(trace, sequences, LruBlocks(None)),
        pooled_lru=_hit_ratio(trace, sequences, LruBlocks(capacity)),
        pooled_belady=_hit_ratio(trace, sequences, BeladyBlocks(capacity, sequences)),
    )


def _with_answers(trace: Trace) -> list[Sequence[int]]:
    """The blocks of each prompt and of its answer, which have names of their own."""
    fresh = 1 + max(name for request in trace.requests for name in request.hash_ids)
    sequences: list[Sequence[int]] = []
    for request in trace.requests:
        blocks = ceil((request.input_tokens + request.output_tokens) / trace.block_tokens) - len(request.hash_ids)
        sequences.append((*request.hash_ids, *range(fresh, fresh + blocks)))
        fresh += blocks
    return sequences


def _hit_ratio(trace: Trace, sequences: Sequence[Sequence[int]], cache: LruBlocks | BeladyBlocks) -> float:
    hit_tokens = 0
    for request, names in zip(trace.requests, sequences, strict=True):
        hit_tokens += min(cache.held(names) * trace.block_tokens, request.input_tokens - 1)
        cache.store(names)
    return hit_tokens / trace.input_tokens
