"""Which slots hold which block, kept in runs: blocks that follow one another and that the same slots hold.

Events come, and caches are evicted, in stretches, so runs are long and few. Two blocks of one run have all that lies
between them in it too: that lets a walk down a prompt jump from run to run, and yet see every hole.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from kv_events.events import EngineHash


class _Run:
    """The blocks `chain[start:stop]`, held by exactly the slots of the mask `slots`.

    A chain lists hashes of blocks, each the parent of the next; the first is the parent of all, None at the root.
    `names` is what the engine that announced them first calls them. Runs that were one share both lists, so to split a
    run copies nothing.
    """

    __slots__ = ("chain", "names", "slots", "start", "stop")

    def __init__(
        self, chain: list[int | None], names: list[EngineHash | None], start: int, stop: int, slots: int
    ) -> None:
        self.chain, self.names, self.start, self.stop, self.slots = chain, names, start, stop, slots

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def hashes(self) -> list[int | None]:
        return self.chain[self.start : self.stop]


class HeldRuns:
    """One entry for each block that any slot holds. A slot is given as its bit, a mask with that one bit set."""

    def __init__(self) -> None:
        self._run_of: dict[int | None, _Run] = {}

    def __len__(self) -> int:
        return len(self._run_of)

    def stretch(self, hashes: Sequence[int], first: int) -> tuple[int, int]:
        """The slots that hold block `first` of a prompt, and the end (exclusive) of the run that it is in: they hold
        all up to there, and what follows is in another."""
        run = self._run_of.get(hashes[first])
        if run is None:
            return 0, first + 1
        run_of = self._run_of
        end = min(len(hashes), first + len(run))
        if run_of.get(hashes[end - 1]) is not run:
            end = bisect_left(range(end), True, lo=first, key=lambda at: run_of.get(hashes[at]) is not run)
        return run.slots, end

    def parent(self, block_hash: int) -> int | None:
        """The hash of the block before one that is held; None for a prompt's first."""
        run = self._run_of[block_hash]
        return run.chain[run.chain.index(block_hash, run.start, run.stop) - 1]

    # What a slot comes to hold

    def hold(self, bit: int, hashes: list[int], names: list[EngineHash], parent: int | None) -> list[int]:
        """The slot got these blocks, each the parent of the next. Returns those that it held already.

        Numbers in both lists that are known from other slots are replaced by the same objects: a fleet whose engines
        name blocks alike keeps each number once.
        """
        if self._run_of.keys().isdisjoint(hashes):
            self._append(bit, hashes, names, parent)
            return []
        already: list[int] = []
        first = 0
        while first < len(hashes):
            slots, end = self.stretch(hashes, first)
            if slots & bit:
                already += hashes[first:end]
            elif slots:
                run = self._share(bit, hashes[first], end - first)
                start = run.chain.index(hashes[first], run.start, run.stop)
                known = slice(start, start + end - first)
                hashes[first:end] = run.chain[known]  # type: ignore[assignment]  # only a chain's first may be None
                if run.names[known] == names[first:end]:
                    names[first:end] = run.names[known]  # type: ignore[assignment]
            else:
                end = next((at for at in range(end, len(hashes)) if hashes[at] in self._run_of), len(hashes))
                self._append(bit, hashes[first:end], names[first:end], hashes[first - 1] if first else parent)
            first = end
        return already

    def _append(self, bit: int, hashes: Sequence[int], names: Sequence[EngineHash], parent: int | None) -> None:
        """Blocks that nobody holds yet."""
        run = self._run_of.get(parent)
        if run is None or run.slots != bit or run.stop != len(run.chain) or run.chain[-1] != parent:
            run = _Run([parent], [None], 1, 1, bit)
        run.chain += hashes
        run.names += names
        run.stop = len(run.chain)
        self._run_of.update(dict.fromkeys(hashes, run))

    def _share(self, bit: int, first: int, blocks: int) -> _Run:
        """Blocks of one run that other slots hold, from the hash `first` on. Returns the run that has them now."""
        run = self._run_of[first]
        run = self._part(run, start := run.chain.index(first, run.start, run.stop), start + blocks)
        run.slots |= bit
        return self._join(run)

    # What a slot loses

    def release(self, bit: int, hashes: Collection[int]) -> None:
        """The slot lost these blocks, in any order. Each must be one that it holds."""
        run_of = self._run_of
        gone_of: dict[_Run, list[int]] = {}
        for run, block_hash in zip(map(run_of.__getitem__, hashes), hashes, strict=True):
            if run in gone_of:
                gone_of[run].append(block_hash)
            else:
                gone_of[run] = [block_hash]
        for run, gone in gone_of.items():
            if len(gone) == len(run):
                self._lose(run, bit)
                continue
            chain = run.chain
            for start, stop in _stretches(run, gone):
                self._lose(self._part(run_of[chain[start]], start, stop), bit)

    def _lose(self, run: _Run, bit: int) -> None:
        run.slots ^= bit
        if run.slots:
            self._join(run)
            return
        deque(map(self._run_of.__delitem__, run.hashes), maxlen=0)
        if run.stop == len(run.chain):
            del run.chain[run.start :], run.names[run.start :]  # else all that ever followed would be remembered

    # Splitting and joining

    def _part(self, run: _Run, start: int, stop: int) -> _Run:
        """Make `chain[start:stop]`, which lies within `run`, a run of its own."""
        if stop < run.stop:
            run, _ = self._split(run, stop)
        if start > run.start:
            _, run = self._split(run, start)
        return run

    def _split(self, run: _Run, at: int) -> tuple[_Run, _Run]:
        """The run before and the one from `at` on. The larger part stays what it was."""
        if at - run.start < run.stop - at:
            new = _Run(run.chain, run.names, run.start, at, run.slots)
            run.start = at
            parts = new, run
        else:
            new = _Run(run.chain, run.names, at, run.stop, run.slots)
            run.stop = at
            parts = run, new
        self._run_of.update(dict.fromkeys(new.hashes, new))
        return parts

    def _join(self, run: _Run) -> _Run:
        """Make one run of this and its neighbours that the same slots hold, as they may after a change of `slots`."""
        chain = run.chain
        before = self._run_of.get(chain[run.start - 1])
        if before is not None and before.chain is chain and before.slots == run.slots:
            run = self._merge(before, run)
        behind = self._run_of.get(chain[run.stop]) if run.stop < len(chain) else None
        if behind is not None and behind.chain is chain and behind.slots == run.slots:
            run = self._merge(run, behind)
        return run

    def _merge(self, run: _Run, behind: _Run) -> _Run:
        """The larger of two neighbours takes in the other."""
        larger, smaller = (run, behind) if len(run) >= len(behind) else (behind, run)
        self._run_of.update(dict.fromkeys(smaller.hashes, larger))
        larger.start, larger.stop = run.start, behind.stop
        return larger

    # For tests

    def slots_by_hash(self) -> dict[int, int]:
        return {block_hash: run.slots for block_hash, run in self._run_of.items() if block_hash is not None}

    def check(self) -> None:
        """Raise AssertionError unless each run is the run of exactly its blocks, and its neighbours differ from it."""
        for run in set(self._run_of.values()):
            assert run.slots, "a run that nobody holds"
            assert all(self._run_of[block_hash] is run for block_hash in run.hashes)
            following = self._run_of.get(run.chain[run.stop]) if run.stop < len(run.chain) else None
            assert following is None or following.chain is not run.chain or following.slots != run.slots
        assert sum(len(run) for run in set(self._run_of.values())) == len(self._run_of)


def _stretches(run: _Run, gone: list[int]) -> Iterator[tuple[int, int]]:
    """Where in the run's chain these of its blocks lie, as (start, stop), from the last to the first."""
    tail = run.stop - len(gone)
    if run.chain[tail : run.stop] == gone[::-1]:  # as engines evict: the end of a sequence, the last block first
        yield tail, run.stop
        return
    place_of: dict[int | None, int] = {block_hash: at for at, block_hash in enumerate(run.hashes, run.start)}
    places = sorted(place_of[block_hash] for block_hash in gone)
    ends = [at for at, (place, following) in enumerate(pairwise(places), 1) if following != place + 1]
    for first, end in reversed([*pairwise([0, *ends, len(places)])]):
        yield places[first], places[end - 1] + 1
