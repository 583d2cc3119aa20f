"""Load accounting: what waits, what it decays by, and that everything returns to zero."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.load import DECODE_MEMORY_S, PrefillRate, SlotLoad


def test_backlog_counts_uncached_tokens_until_the_first_token() -> None:
    load = SlotLoad(prior_prefill_tokens_per_s=1e-9)
    load.reserve(1, 1000, 300, now=0.0)
    load.reserve(2, 500, 500, now=0.0)
    assert load.queued_prefill_tokens(0.0) == 800
    load.first_token(1, now=0.0)
    assert load.queued_prefill_tokens(0.0) == 500
    assert (load.active_requests, load.decode_tokens) == (2, 1500)
    load.finish(2, now=0.0)
    assert (load.queued_prefill_tokens(0.0), load.active_requests, load.decode_tokens) == (0, 1, 1000)


def test_backlog_decays_at_the_prefill_rate_oldest_first() -> None:
    load = SlotLoad(prior_prefill_tokens_per_s=100.0)
    load.reserve(1, 300, 300, now=0.0)
    load.reserve(2, 200, 200, now=0.0)
    assert load.queued_prefill_tokens(2.0) == pytest.approx(300)
    load.finish(1, now=2.0)
    assert load.queued_prefill_tokens(2.0) == pytest.approx(200), "the second had not begun"
    assert load.queued_prefill_tokens(100.0) == 0


def test_an_idle_slot_does_not_save_up_work() -> None:
    load = SlotLoad(prior_prefill_tokens_per_s=100.0)
    load.reserve(1, 50, 50, now=1000.0)
    assert load.queued_prefill_tokens(1000.0) == 50


def test_a_request_waits_until_its_first_token_or_its_end() -> None:
    load = SlotLoad(100.0)
    for ticket in (1, 2, 3):
        load.reserve(ticket, 10, 10, now=0.0)
    load.first_token(1, now=0.1)
    load.first_token(1, now=0.2)
    assert (load.active_requests, load.waiting_requests) == (3, 2)
    load.finish(1, now=0.3)
    load.finish(2, now=0.3)
    assert (load.active_requests, load.waiting_requests) == (1, 1)


def test_mean_decode_tokens_follows_what_is_held() -> None:
    load = SlotLoad(100.0)
    load.reserve(1, 1000, 0, now=500.0)
    assert load.mean_decode_tokens(500.0) == 0
    assert load.mean_decode_tokens(500.0 + DECODE_MEMORY_S) == pytest.approx(1000 * (1 - exp(-1)))
    assert load.mean_decode_tokens(1000.0) == pytest.approx(1000, rel=1e-6)
    load.finish(1, now=1000.0)
    assert load.mean_decode_tokens(1000.0 + DECODE_MEMORY_S) == pytest.approx(1000 * exp(-1), rel=1e-6)


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 60)), min_size=1, max_size=20))
def test_mean_decode_tokens_is_the_integral(rows: list[tuple[int, float]]) -> None:
    """Asked often or seldom, it is the same: here once, against a mean taken in small steps."""
    load, now, mean, step = SlotLoad(100.0), 0.0, 0.0, 0.05
    for ticket, (tokens, wait) in enumerate(rows):
        steps = round(wait / step)
        for _ in range(steps):
            mean = load.decode_tokens + (mean - load.decode_tokens) * exp(-step / DECODE_MEMORY_S)
        now += steps * step
        load.reserve(ticket, tokens, 0, now)
    assert load.mean_decode_tokens(now) == pytest.approx(mean, rel=1e-6, abs=1e-6)


def test_prefill_rate_is_learned_from_first_tokens() -> None:
    load = SlotLoad(prior_prefill_tokens_per_s=10.0)
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
    load, now = SlotLoad(500.0), 0.0
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
