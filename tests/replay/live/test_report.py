"""Numbers from answers made by hand."""

import pytest

from protocol.sse import Usage
from replay.errors import RequestFailed
from replay.live.client import TimedAnswer
from replay.live.report import Failures, live_report
from replay.live.run import Sent
from replay.measures import NothingAnswered, TokenCounts
from replay.traces.trace import TraceRequest


def sent(times, usage=(100, 11, 0), worker=None, predicted=None, due_s=0.0) -> Sent:
    sent_s, first_token_s, ended_s = times
    answer = TimedAnswer(Usage(*usage), first_token_s, ended_s, worker, predicted)
    return Sent(TraceRequest(90, 11, (1, 2, 3)), due_s, sent_s, answer)


def failed(message: str, status: int | None = None) -> Sent:
    return Sent(TraceRequest(90, 11, (1, 2, 3)), 0.0, 0.0, RequestFailed(message, status))


NAMED = [
    sent((0.0, 1.0, 2.0), (100, 11, 0), "w-1", 16),
    sent((0.5, 2.5, 4.5), (100, 11, 32), "w-1", 32, due_s=0.25),
    sent((6.0, 7.0, 12.0), (100, 1, 64), "w-2", 64, due_s=6.0),
]
UNNAMED = [sent((0.0, 1.0, 2.0), (100, 11, None)), sent((0.0, 2.0, 4.0), (100, 11, None))]


def test_every_number():
    report = live_report([*NAMED, failed("no")], {})
    assert report.hit_ratio == pytest.approx(96 / 300)
    assert report.predicted_hit_ratio == pytest.approx(112 / 300)
    assert report.ttft_ms.mean == pytest.approx(4000 / 3)
    assert report.itl_ms.mean == pytest.approx((100 + 200) / 2), "an answer of one token has no time between tokens"
    assert report.e2e_ms.p50 == pytest.approx(4000)
    assert report.workers == {"w-1": TokenCounts(200, 32, 22), "w-2": TokenCounts(100, 64, 1)}
    assert report.max_share == pytest.approx(190 / 227)
    assert report.load_cv == pytest.approx(1), "each worker was busy alone"
    assert (report.requests, report.rejected, report.duration_s) == (4, 1, 12.0)
    assert (report.tokens, report.trace_input_tokens) == (TokenCounts(300, 96, 23), 270)
    assert report.lag_ms.mean == pytest.approx(250 / 4)


def test_what_nobody_says_is_not_known():
    report = live_report(UNNAMED, {})
    assert (report.hit_ratio, report.predicted_hit_ratio) == (None, None)
    assert (report.load_cv, report.max_share, report.workers) == (None, None, {})


def test_counters_tell_what_answers_do_not():
    counted = {"http://a": TokenCounts(150, 50, 10), "http://b": TokenCounts(50, 0, 12)}
    report = live_report(UNNAMED, counted)
    assert report.hit_ratio == pytest.approx(50 / 200)
    assert report.workers == counted
    assert report.max_share == pytest.approx(110 / 172)


def test_workers_that_did_nothing_have_no_largest_share():
    assert live_report(UNNAMED, {"http://elsewhere": TokenCounts(0, 0, 0)}).max_share is None


def test_no_hit_is_a_hit_ratio_of_zero():
    counted = {"http://a": TokenCounts(1000, 500, 10)}
    assert live_report([sent((0, 1, 2)), sent((0, 1, 2))], counted).hit_ratio == 0


def test_failures_that_differ_in_numbers_only_count_together():
    failures = [failed("no", 503), failed("the prompt has 17 tokens", 400), failed("the prompt has 18 tokens", 400)]
    assert live_report([*failures, *UNNAMED], {}).failures == (
        Failures(400, "the prompt has 17 tokens", 2),
        Failures(503, "no", 1),
    )


def test_no_answer_at_all_is_an_error_with_a_reason():
    with pytest.raises(NothingAnswered, match="refused"):
        live_report([failed("connection refused")], {})
