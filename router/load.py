"""What a slot has to do: the requests placed there, the prefill they still wait for, and how fast it prefills.

The load of all slots is one table, so that a policy reads it in columns. Several router processes may share it: each
writes its own plane, and reads the sum of all.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import exp

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
    BACKLOG,  # uncached tokens that waited at DRAINED_AT
    DRAINED_AT,
    ACTIVE_REQUESTS,
    WAITING_REQUESTS,
    DECODE_TOKENS,
    MEAN_DECODE_TOKENS,  # at MEAN_AT
    MEAN_AT,
    TOKENS_PER_S,
    LAST_PLACED,
    TREE_TOKENS,
) = COLUMNS = range(11)


class LoadTable:
    """Cells by column, process and slot; times are the core's clock, which processes that share a table share too.

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
        self._cells = memory[: -names.size].view(np.float64).reshape(len(COLUMNS), processes, MAX_SLOTS)
        self._process, self._own = process, self._cells[:, process]
        self._lock: AbstractContextManager[object] = nullcontext() if lock is None else lock

    @staticmethod
    def size_bytes(processes: int) -> int:
        return (processes * len(COLUMNS) + 1) * MAX_SLOTS * 8

    # Rows

    def take(self, slot: str) -> int:
        """A row for `slot`: the one that other processes have for it. Raises RuntimeError when all are taken.

        A slot that comes back before its last request has ended gets another one, apart from the other processes'.
        """
        name = xxh3_64_intdigest(slot.encode())
        with self._lock:
            free = ~self._cells[TAKEN].any(axis=0)
            same = (self._names == name) & ~free & (self._own[TAKEN] == 0)
            rows = np.flatnonzero(same if same.any() else free)
            if not rows.size:
                raise RuntimeError(f"{MAX_SLOTS} slots are the most that this router follows")
            row = int(rows[0])
            self._names[row] = name
            self._own[:, row] = 0
            self._own[TAKEN, row] = 1
        return row

    def release(self, row: int) -> None:
        self._own[:, row] = 0

    def forget_process(self, process: int) -> None:
        """It ended, and all that it had under way with it."""
        self._cells[:, process] = 0

    # Cells

    def write(self, row: int, *cells: float) -> None:
        """All of this process's cells of a row, but for the first and the last column."""
        self._own[TAKEN + 1 : TREE_TOKENS, row] = cells

    def write_tree_tokens(self, row: int, tokens: int) -> None:
        self._own[TREE_TOKENS, row] = tokens

    def at(self, rows: NDArray[np.intp], now: float) -> list[Column]:
        """By column, what the slots `rows` have to do: of all processes, and up to `now`.

        A process learns how fast its own requests are prefilled, between those of the others. So backlogs shrink each
        at its own rate, and the slot's rate is the highest of them. LAST_PLACED and TREE_TOKENS are this process's own.
        """
        columns = [*self._cells.take(rows, axis=2)]  # each of the shape (processes, rows)
        done = (now - columns[DRAINED_AT]) * columns[TOKENS_PER_S]
        columns[BACKLOG] = np.maximum(columns[BACKLOG] - done, 0.0)
        faded = np.exp((columns[MEAN_AT] - now) / DECODE_MEMORY_S)
        held = columns[DECODE_TOKENS]
        columns[MEAN_DECODE_TOKENS] = held + (columns[MEAN_DECODE_TOKENS] - held) * faded
        if len(held) == 1:
            return [column[0] for column in columns]
        fastest = columns[TOKENS_PER_S].max(axis=0)
        own = [column[self._process] for column in columns[LAST_PLACED:]]
        return [*(column.sum(axis=0) for column in columns[:TOKENS_PER_S]), fastest, *own]


@dataclass(slots=True)
class _Request:
    prompt_tokens: int
    placed_at: float
    work_ahead: float  # prefill tokens that had to be done before its first token, its own included


class PrefillRate:
    """Prefill tokens/s of a slot, learned from first tokens; `prior` counts as one second of observation.

    Sums of tokens and of seconds are aged, not their ratios, so that short prompts, whose time is mostly overhead,
    weigh little.
    """

    def __init__(self, prior_tokens_per_s: float) -> None:
        self._tokens, self._seconds = prior_tokens_per_s, 1.0

    @property
    def tokens_per_s(self) -> float:
        return self._tokens / self._seconds

    def observe(self, tokens: float, seconds: float) -> None:
        if tokens > 0 and seconds > 0:
            self._tokens = self._tokens * RATE_MEMORY + tokens
            self._seconds = self._seconds * RATE_MEMORY + seconds


class SlotLoad:
    """The requests that this process has in flight on one slot, written to the slot's row of the table.

    `reserve` once, `first_token` at most once, `finish` once for each ticket. Tickets are numbers that rise.
    """

    def __init__(self, table: LoadTable, row: int, prior_prefill_tokens_per_s: float) -> None:
        self._table, self._row = table, row
        self.rate = PrefillRate(prior_prefill_tokens_per_s)
        self._decode_tokens = 0
        self._requests: dict[int, _Request] = {}
        self._waiting: set[int] = set()  # tickets without a first token
        self._backlog: dict[int, float] = {}  # ticket -> uncached tokens not yet done, in order of arrival
        self._drained_at = 0.0
        self._mean_decode_tokens, self._mean_at = 0.0, 0.0
        self._last_placed = 0
        self._write()

    @property
    def active_requests(self) -> int:
        return len(self._requests)

    @property
    def decode_tokens(self) -> int:
        return self._decode_tokens

    def reserve(self, ticket: int, prompt_tokens: int, uncached_tokens: int, now: float) -> None:
        self._drain(now)
        self._requests[ticket] = _Request(prompt_tokens, now, sum(self._backlog.values()) + uncached_tokens)
        self._backlog[ticket] = uncached_tokens
        self._waiting.add(ticket)
        self._last_placed = ticket
        self._hold(prompt_tokens, now)

    def first_token(self, ticket: int, now: float) -> None:
        if ticket not in self._waiting:
            return
        request = self._requests[ticket]
        self._answers(ticket, now)
        self.rate.observe(request.work_ahead, now - request.placed_at)
        self._write()

    def finish(self, ticket: int, now: float) -> None:
        self._answers(ticket, now)
        self._hold(-self._requests.pop(ticket).prompt_tokens, now)

    def holds(self, tree_tokens: int) -> None:
        """KV tokens that the slot's cache is known to hold."""
        self._table.write_tree_tokens(self._row, tree_tokens)

    def _hold(self, tokens: int, now: float) -> None:
        share = exp((self._mean_at - now) / DECODE_MEMORY_S)
        self._mean_decode_tokens = self._decode_tokens + (self._mean_decode_tokens - self._decode_tokens) * share
        self._mean_at = now
        self._decode_tokens += tokens
        self._write()

    def _answers(self, ticket: int, now: float) -> None:
        """Its prefill is over, done or not."""
        self._drain(now)
        self._waiting.discard(ticket)
        self._backlog.pop(ticket, None)

    def _drain(self, now: float) -> None:
        """What was prefilled since the last time: the oldest request first."""
        budget = (now - self._drained_at) * self.rate.tokens_per_s
        self._drained_at = now
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
            sum(self._backlog.values()),
            self._drained_at,
            len(self._requests),
            len(self._waiting),
            self._decode_tokens,
            self._mean_decode_tokens,
            self._mean_at,
            self.rate.tokens_per_s,
            self._last_placed,
        )
