"""What a slot has to do: the requests placed there, the prefill they still wait for, and how fast it prefills.

The load of all slots is one table, so that a policy reads it in columns. Several router processes may share it: each
writes its own plane, and reads the sum of all.
"""

from contextlib import AbstractContextManager, nullcontext
from math import exp
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from policies.views import Column

RATE_MEMORY = 0.9
"""Each first token ages what was learned of the prefill rate by this: about the last ten decide."""

DECODE_MEMORY_S = 20.0
"""The mean of decode tokens forgets by this time constant: some answers long, and short beside a conversation."""

MAX_SLOTS = 2048
"""Rows of the table."""

(
    TAKEN,  # 1: this process has the slot open
    AT,  # as of when the others are
    BACKLOG,  # uncached tokens that wait
    ACTIVE_REQUESTS,
    DECODE_TOKENS,
    EXCESS_TOKENS,  # of the mean of decode tokens over them
    WAITING_REQUESTS,
    LAST_PLACED,
    TOKENS_PER_S,
    TREE_TOKENS,
) = range(10)
COLUMNS = TREE_TOKENS + 1
WRITTEN = Struct(f"{TOKENS_PER_S - AT + 1}d")
"""The cells that change with a slot's requests: packed side by side, which takes a quarter of an array's assignment."""


class Loads(NamedTuple):
    """What slots have to do, in columns of the shape (slots,). policies/views.py says what each is: `Candidates`
    ends with the same."""

    queued_prefill_tokens: Column
    active_requests: Column
    decode_tokens: Column
    mean_decode_tokens: Column
    waiting_requests: Column
    last_placed: Column
    prefill_tokens_per_s: Column
    tree_tokens: Column


class LoadTable:
    """Cells by process, slot and column; times are the core's clock, which processes that share a table share too.

    `buffer` holds the cells and then the slots' names, all zero at first; `lock` is held while a row is taken.
    """

    def __init__(
        self,
        buffer: bytearray | memoryview | None = None,
        *,
        processes: int = 1,
        process: int = 0,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        size = self.size_bytes(processes)
        memory = np.frombuffer(bytearray(size) if buffer is None else buffer, np.uint8)[:size]
        names = memory[-MAX_SLOTS * 8 :]
        self._names = names.view(np.uint64)
        self._cells = memory[: -names.size].view(np.float64).reshape(processes, MAX_SLOTS, COLUMNS)
        self._processes, self._process, self._own = processes, process, self._cells[process]
        self._own_bytes = memoryview(self._own).cast("B")
        self._lock: AbstractContextManager[object] = nullcontext() if lock is None else lock

    @staticmethod
    def size_bytes(processes: int) -> int:
        return (processes * COLUMNS + 1) * MAX_SLOTS * 8

    # Rows

    def take(self, slot: str) -> int:
        """A row for `slot`: the one that other processes have for it. Raises RuntimeError when all are taken.

        A slot that comes back before its last request has ended gets another one, apart from the other processes'.
        """
        name = xxh3_64_intdigest(slot.encode())
        with self._lock:
            free = ~self._cells[:, :, TAKEN].any(axis=0)
            same = (self._names == name) & ~free & (self._own[:, TAKEN] == 0)
            rows = np.flatnonzero(same if same.any() else free)
            if not rows.size:
                raise RuntimeError(f"{MAX_SLOTS} slots are the most that this router follows")
            row = int(rows[0])
            self._names[row] = name
            self._own[row] = 0
            self._own[row, TAKEN] = 1
        return row

    def release(self, row: int) -> None:
        self._own[row] = 0

    def forget_process(self, process: int) -> None:
        """It ended, and all that it had under way with it."""
        self._cells[process] = 0

    # Cells

    def write(self, row: int, *cells: float) -> None:
        """What this process has on a slot: its cells from AT to TOKENS_PER_S."""
        WRITTEN.pack_into(self._own_bytes, 8 * (row * COLUMNS + AT), *cells)

    def write_tree_tokens(self, row: int, tokens: int) -> None:
        self._own[row, TREE_TOKENS] = tokens

    def at(self, rows: NDArray[np.intp], now: float) -> Loads:
        """What the slots `rows` have to do: of all processes, and up to `now`.

        A process learns how fast its own requests are prefilled, between those of the others. So backlogs shrink each
        at its own rate, and the slot's rate is the highest of them. Last placed and tree tokens are this process's own.
        """
        cells = self._own.take(rows, axis=0) if self._processes == 1 else self._cells.take(rows, axis=1)
        _, at, backlog, active, held, excess, waiting, last_placed, rate, tree = cells.T  # each (slots[, processes])
        age_s = now - at
        queued = np.maximum(backlog - age_s * rate, 0.0)
        mean = held + excess * np.exp(age_s / -DECODE_MEMORY_S)
        loads = Loads(queued, active, held, mean, waiting, last_placed, rate, tree)
        return loads if self._processes == 1 else self._joint(loads)

    def _joint(self, loads: Loads) -> Loads:
        """Of columns of the shape (slots, processes)."""
        sums = Loads(*(column.sum(axis=1) for column in loads))
        return sums._replace(
            last_placed=loads.last_placed[:, self._process],
            prefill_tokens_per_s=loads.prefill_tokens_per_s.max(axis=1),
            tree_tokens=loads.tree_tokens[:, self._process],
        )


class PrefillRate:
    """Prefill tokens/s of a slot, learned from first tokens; `prior` counts as one second of observation.

    Sums of tokens and of seconds are aged, not their ratios, so that short prompts, whose time is mostly overhead,
    weigh little.
    """

    def __init__(self, prior_tokens_per_s: float) -> None:
        self._tokens, self._seconds = prior_tokens_per_s, 1.0
        self.tokens_per_s = prior_tokens_per_s

    def observe(self, tokens: float, seconds: float) -> None:
        if tokens > 0 and seconds > 0:
            self._tokens = self._tokens * RATE_MEMORY + tokens
            self._seconds = self._seconds * RATE_MEMORY + seconds
            self.tokens_per_s = self._tokens / self._seconds


class SlotLoad:
    """The requests that this process has in flight on one slot, written to the slot's row of the table.

    `reserve` once, `first_token` at most once, `finish` once for each ticket. Tickets are numbers that rise.
    """

    def __init__(self, table: LoadTable, row: int, prior_prefill_tokens_per_s: float) -> None:
        self._table, self._row = table, row
        self.rate = PrefillRate(prior_prefill_tokens_per_s)
        self.decode_tokens = 0
        self._prompt_tokens: dict[int, int] = {}  # of each ticket
        self._waiting: dict[int, tuple[float, float]] = {}  # those without a first token: placed at, prefill until then
        self._backlog: dict[int, float] = {}  # of these, uncached tokens not yet done, in order of arrival
        self._excess_tokens = 0.0  # of the mean of decode tokens over decode_tokens
        self._at = 0.0  # up to then the backlog is done and the mean has followed
        self._last_placed = 0
        self._write()

    @property
    def active_requests(self) -> int:
        return len(self._prompt_tokens)

    def reserve(self, ticket: int, prompt_tokens: int, uncached_tokens: int, now: float) -> None:
        self._advance(now)
        self._prompt_tokens[ticket] = prompt_tokens
        self._backlog[ticket] = uncached_tokens
        self._waiting[ticket] = now, sum(self._backlog.values())
        self._last_placed = ticket
        self._hold(prompt_tokens)
        self._write()

    def first_token(self, ticket: int, now: float) -> None:
        if ticket not in self._waiting:
            return
        self._advance(now)
        placed_at, prefill_tokens = self._waiting.pop(ticket)
        self._backlog.pop(ticket, None)
        self.rate.observe(prefill_tokens, now - placed_at)
        self._write()

    def finish(self, ticket: int, now: float) -> None:
        self._advance(now)
        self._waiting.pop(ticket, None)
        self._backlog.pop(ticket, None)
        self._hold(-self._prompt_tokens.pop(ticket))
        self._write()

    def holds(self, tree_tokens: int) -> None:
        """KV tokens that the slot's cache is known to hold."""
        self._table.write_tree_tokens(self._row, tree_tokens)

    def _hold(self, tokens: int) -> None:
        """So many more, or less: their mean is what it was."""
        self.decode_tokens += tokens
        self._excess_tokens -= tokens

    def _advance(self, now: float) -> None:
        """What happened since the last time: the oldest requests were prefilled first, and the mean followed."""
        age_s = now - self._at
        self._at = now
        self._excess_tokens *= exp(age_s / -DECODE_MEMORY_S)
        budget = age_s * self.rate.tokens_per_s
        while self._backlog and budget > 0:
            oldest = next(iter(self._backlog))
            left = self._backlog[oldest] - budget
            budget = -left
            if left > 0:
                self._backlog[oldest] = left
            else:
                del self._backlog[oldest]

    def _write(self) -> None:
        self._table.write(
            self._row,
            self._at,
            sum(self._backlog.values()),
            len(self._prompt_tokens),
            self.decode_tokens,
            self._excess_tokens,
            len(self._waiting),
            self._last_placed,
            self.rate.tokens_per_s,
        )
