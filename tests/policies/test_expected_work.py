import pytest

from policies.expected_work import ExpectedWork
from policies.views import RequestView
from tests.policies.fleet import best, costs, worker

PROFILE = "expected_work:miss_price=1.5:prefill_token_ms=0.1:prefill_pass_ms=7:decode_kv_token_ms=0.001"


def test_formula() -> None:
    c = worker(
        "a",
        cached_tokens=600,
        queued_prefill_tokens=50,
        active_requests=3,
        waiting_requests=2,
        decode_tokens=1000,
        mean_decode_tokens=3000.0,
    )
    wait_ms, prefill_ms, stalls_ms, decoding_ms = 50 * 0.1 + 2 * 7, 400 * 0.1, 3 * 40, 100 * 0.001 * 2000
    expected_ms = wait_ms + 1.5 * prefill_ms + 0.2 * (stalls_ms + decoding_ms)
    assert costs(f"{PROFILE}:omega=0.2:answer_tokens=200", RequestView(1000), c) == [pytest.approx(expected_ms)]


def test_keeps_affinity_until_the_wait_costs_more_than_the_prefill() -> None:
    cold = worker("cold")
    for queued, expected in ((800, "warm"), (1200, "cold")):
        warm = worker("warm", cached_tokens=900, queued_prefill_tokens=queued)
        assert best("expected_work", RequestView(1000), warm, cold) == {expected}


def test_each_that_waits_takes_a_pass() -> None:
    """A queue of many short prompts is longer than its tokens say, unless this one is as short."""
    many = worker("many", queued_prefill_tokens=100, active_requests=5, waiting_requests=5)
    one = worker("one", queued_prefill_tokens=200, active_requests=5, waiting_requests=1)
    assert best("expected_work", RequestView(5000), many, one) == {"one"}
    assert best("expected_work:prefill_pass_ms=0", RequestView(5000), many, one) == {"many"}
    assert best("expected_work", RequestView(10), many, one) == {"many"}


def test_a_new_conversation_goes_where_less_was_held_of_late() -> None:
    """Of two idle places, the one whose conversations have just paused is the worse."""
    paused, quiet = worker("paused", mean_decode_tokens=50_000.0), worker("quiet", mean_decode_tokens=1000.0)
    assert best("expected_work", RequestView(1000), paused, quiet) == {"quiet"}


def test_an_answer_s_length_is_not_known() -> None:
    """Its documented failure: one long generation ahead looks like one that is about to end."""
    busy, ending = (worker(key, active_requests=1, decode_tokens=500) for key in ("busy", "ending"))
    assert best("expected_work", RequestView(100), busy, ending) == {"busy", "ending"}


def test_without_worth_of_decoding_it_is_least_prefill() -> None:
    policy = ExpectedWork(omega=0, miss_price=1, prefill_pass_ms=0, prefill_token_ms=1)
    c = worker("a", cached_tokens=6, queued_prefill_tokens=50, active_requests=3, waiting_requests=2, decode_tokens=9)
    assert costs(policy, RequestView(10), c) == costs("least_prefill", RequestView(10), c)
