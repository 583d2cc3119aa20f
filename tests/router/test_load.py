"""Load accounting: what waits, what it decays by, and that everything returns to zero."""

from collections import deque
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.views import Candidates
from router.load import DECODE_MEMORY_S, MAX_SLOTS, Loads, LoadTable, PrefillRate, SlotLoad


class Load(SlotLoad):
    """A slot's load, in a table of its own or as one process of several."""

    def __init__(self, prior_prefill_tokens_per_s: float, table: LoadTable | None = None, slot: str = "w:1") -> None:
        self.table = table or LoadTable()
        self.row = self.table.take(slot)
        super().__init__(self.table, self.row, prior_prefill_tokens_per_s)

    def cell(self, column: str, now: float) -> float:
        return float(getattr(self.table.at(np.array([self.row]), now), column)[0])

    def queued_prefill_tokens(self, now: float) -> float:
        return self.cell("queued_prefill_tokens", now)

    def mean_decode_tokens(self, now: float) -> float:
        return self.cell("mean_decode_tokens", now)

    @property
    def waiting_requests(self) -> float:
        return self.cell("waiting_requests", 0.0)


def test_a_policy_sees_the_columns_by_the_names_that_the_table_has_for_them() -> None:
    assert Candidates._fields == ("keys", "cached_tokens", *Loads._fields)


def test_backlog_counts_uncached_tokens_until_the_first_token() -> None:
    load = Load(prior_prefill_tokens_per_s=1e-9)
    load.reserve(1, 1000, 300, now=0.0)
    load.reserve(2, 500, 500, now=0.0)
    assert load.queued_prefill_tokens(0.0) == 800
    load.first_token(1, now=0.0)
    assert load.queued_prefill_tokens(0.0) == 500
    assert (load.active_requests, load.decode_tokens) == (2, 1500)
    load.finish(2, now=0.0)
    assert (load.queued_prefill_tokens(0.0), load.active_requests, load.decode_tokens) == (0, 1, 1000)


def test_backlog_decays_at_the_prefill_rate_oldest_first() -> None:
    load = Load(prior_prefill_tokens_per_s=100.0)
    load.reserve(1, 300, 300, now=0.0)
    load.reserve(2, 200, 200, now=0.0)
    assert load.queued_prefill_tokens(2.0) == pytest.approx(300)
    load.finish(1, now=2.0)
    assert load.queued_prefill_tokens(2.0) == pytest.approx(200), "the second had not begun"
    assert load.queued_prefill_tokens(100.0) == 0


def test_an_idle_slot_does_not_save_up_work() -> None:
    load = Load(prior_prefill_tokens_per_s=100.0)
    load.reserve(1, 50, 50, now=1000.0)
    assert load.queued_prefill_tokens(1000.0) == 50


def test_a_request_waits_until_its_first_token_or_its_end() -> None:
    load = Load(100.0)
    for ticket in (1, 2, 3):
        load.reserve(ticket, 10, 10, now=0.0)
    load.first_token(1, now=0.1)
    load.first_token(1, now=0.2)
    assert (load.active_requests, load.waiting_requests) == (3, 2)
    load.finish(1, now=0.3)
    load.finish(2, now=0.3)
    assert (load.active_requests, load.waiting_requests) == (1, 1)


def test_mean_decode_tokens_follows_what_is_held() -> None:
    load = Load(100.0)
    load.reserve(1, 1000, 0, now=500.0)
    assert load.mean_decode_tokens(500.0) == 0
    assert load.mean_decode_tokens(500.0 + DECODE_MEMORY_S) == pytest.approx(1000 * (1 - exp(-1)))
    assert load.mean_decode_tokens(1000.0) == pytest.approx(1000, rel=1e-6)
    load.finish(1, now=1000.0)
    assert load.mean_decode_tokens(1000.0 + DECODE_MEMORY_S) == pytest.approx(1000 * exp(-1), rel=1e-6)


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 60)), min_size=1, max_size=20))
def test_mean_decode_tokens_is_the_integral(rows: list[tuple[int, float]]) -> None:
    """Asked often or seldom, it is the same: here once, against a mean taken in small steps."""
    load, now, mean, step = Load(100.0), 0.0, 0.0, 0.05
    for ticket, (tokens, wait) in enumerate(rows):
        steps = round(wait / step)
        for _ in range(steps):
            mean = load.decode_tokens + (mean - load.decode_tokens) * exp(-step / DECODE_MEMORY_S)
        now += steps * step
        load.reserve(ticket, tokens, 0, now)
    assert load.mean_decode_tokens(now) == pytest.approx(mean, rel=1e-6, abs=1e-6)


def test_prefill_rate_is_learned_from_first_tokens() -> None:
    load = Load(prior_prefill_tokens_per_s=10.0)
    for i in range(60):
        load.reserve(i, 2000, 2000, now=i)
        load.first_token(i, now=i + 0.5)
        load.finish(i, now=i + 0.6)
    assert load.rate.tokens_per_s == pytest.approx(4000, rel=0.05)


def test_rate_ignores_what_says_nothing() -> None:
    rate = PrefillRate(100.0)
    rate.observe(0, 1)
    rate.observe(10, 0)
    assert rate.tokens_per_s == 100.0


@given(
    st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 1), st.floats(0, 2)), max_size=20),
    st.randoms(use_true_random=False),
)
def test_everything_returns_to_zero(rows: list[tuple[int, float, float]], rng) -> None:  # type: ignore[no-untyped-def]
    load, now = Load(500.0), 0.0
    open_tickets = []
    for ticket, (tokens, share, wait) in enumerate(rows):
        now += wait
        load.reserve(ticket, tokens, int(tokens * share), now)
        open_tickets.append(ticket)
        if rng.random() < 0.5:
            load.first_token(rng.choice(open_tickets), now)
        assert 0 <= load.queued_prefill_tokens(now) <= sum(row[0] for row in rows)
    rng.shuffle(open_tickets)
    for ticket in open_tickets:
        load.finish(ticket, now)
    assert (load.active_requests, load.waiting_requests) == (0, 0)
    assert (load.decode_tokens, load.queued_prefill_tokens(now)) == (0, 0)


# Several processes


def shared(processes: int) -> list[LoadTable]:
    buffer = bytearray(LoadTable.size_bytes(processes))
    return [LoadTable(buffer, processes=processes, process=process) for process in range(processes)]


def test_processes_see_the_sum() -> None:
    tables = shared(2)
    tables[0].take("another:1")
    first, second = (Load(1e-9, table) for table in tables)
    first.reserve(1, 1000, 300, now=0.0)
    second.reserve(7, 500, 500, now=0.0)
    second.holds(64)
    for load in (first, second):
        assert load.queued_prefill_tokens(0.0) == 800
        assert (load.cell("active_requests", 0.0), load.waiting_requests, load.cell("decode_tokens", 0.0)) == (
            2,
            2,
            1500,
        )
        assert load.mean_decode_tokens(1000.0) == pytest.approx(1500)
    assert (first.cell("last_placed", 0.0), second.cell("last_placed", 0.0)) == (1, 7), "each counts its own"
    assert (first.cell("tree_tokens", 0.0), second.cell("tree_tokens", 0.0)) == (0, 64)
    second.finish(7, now=0.0)
    assert (first.queued_prefill_tokens(0.0), first.cell("active_requests", 0.0)) == (300, 1)


def test_processes_learn_their_share_of_a_slot_s_rate() -> None:
    """Against a slot that prefills 1000 tokens/s, one request after the other, and falls ever more behind."""
    loads, free_at, coming = [Load(1000.0, table) for table in shared(2)], 0.0, deque[tuple[float, int]]()
    for ticket in range(200):
        now = 0.4 * ticket
        while coming and coming[0][0] <= now:
            first_token_at, answered = coming.popleft()
            loads[answered % 2].first_token(answered, first_token_at)
            loads[answered % 2].finish(answered, first_token_at)
        loads[ticket % 2].reserve(ticket, 500, 500, now)
        free_at = max(free_at, now) + 0.5
        coming.append((free_at, ticket))
    for load in loads:
        assert load.rate.tokens_per_s == pytest.approx(500, rel=0.2)
        assert load.queued_prefill_tokens(now) == pytest.approx((free_at - now) * 1000, rel=0.2)


def test_a_process_that_ended_leaves_nothing() -> None:
    tables = shared(2)
    first, second = (Load(1e-9, table) for table in tables)
    second.reserve(1, 1000, 300, now=0.0)
    tables[0].forget_process(1)
    assert (first.queued_prefill_tokens(0.0), first.cell("active_requests", 0.0)) == (0, 0)


def test_rows_are_taken_by_name_and_given_back() -> None:
    first, second = shared(2)
    assert [first.take(name) for name in "abc"] == [0, 1, 2]
    assert [second.take(name) for name in "cxa"] == [2, 3, 0]
    first.release(0)
    assert second.take("y") == 4, "the row is still the other's"
    second.release(0)
    assert second.take("z") == 0


def test_a_slot_that_is_back_before_it_has_left_has_another_row() -> None:
    table = LoadTable()
    assert (table.take("a"), table.take("a")) == (0, 1)


def test_slots_are_bounded() -> None:
    table = LoadTable()
    for number in range(MAX_SLOTS):
        table.take(str(number))
    with pytest.raises(RuntimeError, match="the most that this router follows"):
        table.take("one more")
