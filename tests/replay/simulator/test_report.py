"""Numbers from flights made by hand."""

import pytest

from replay.bounds import Bounds
from replay.measures import LOAD_BUCKETS, NothingAnswered, load_series
from replay.simulator.flight import Flight
from replay.simulator.report import answered, policy_report
from replay.traces.trace import TraceRequest


def flight(number: int, worker: int, times: tuple[float, float, float], cached: int = 0, output: int = 11) -> Flight:
    sent_s, first_token_s, ended_s = times
    request = TraceRequest(100, output, (number,))
    return Flight(number, request, sent_s, None, worker, cached + 4, cached, first_token_s, ended_s)


FLIGHTS = [
    flight(0, 0, (0.0, 1.0, 2.0)),
    flight(1, 0, (0.0, 2.0, 4.0), cached=32),
    flight(2, 1, (6.0, 7.0, 12.0), cached=64, output=1),
]


def test_every_number() -> None:
    report = policy_report(FLIGHTS, 2, Bounds(0.5, 0.4, 0.45), 900.0, 1.5)
    assert report.hit_ratio == pytest.approx(96 / 300)
    assert report.predicted_hit_ratio == pytest.approx(108 / 300)
    assert report.ttft_ms.mean == pytest.approx(4000 / 3)
    assert len(report.ttft_quantiles_ms) == 101
    assert [report.ttft_quantiles_ms[percent] for percent in (0, 25, 75, 100)] == pytest.approx(
        [1000, 1000, 1500, 2000]
    )
    assert report.itl_ms is not None
    assert report.itl_ms.mean == pytest.approx((100 + 200) / 2), "an answer of one token has no time between tokens"
    assert report.e2e_ms.p50 == pytest.approx(4000)
    assert report.max_share == pytest.approx((111 + 79) / (111 + 79 + 37))
    assert (report.regret.capacity, report.regret.routing) == pytest.approx((0.1, 0.4 - 96 / 300))
    assert (report.regret.index, report.regret.latency_ms) == pytest.approx((12 / 300, 4000 / 3 - 900))
    assert (report.rejected, report.wall_s) == (0, 1.5)


def test_rejected_requests_count_and_nothing_else_of_them_does() -> None:
    rejected = Flight(3, TraceRequest(1000, 5, (3,)), 0.0, None, rejection="too long")
    report = policy_report([*FLIGHTS, rejected], 2, None, 900.0, 1.5)
    assert report.rejected == 1
    assert report.hit_ratio == pytest.approx(96 / 300)
    assert (report.regret.capacity, report.regret.routing) == (None, None)


def test_all_rejected_is_an_error_with_the_reason() -> None:
    with pytest.raises(NothingAnswered, match="too long"):
        policy_report([Flight(0, TraceRequest(9, 5, (3,)), 0.0, None, rejection="too long")], 2, None, 0.0, 1.0)


def test_load_over_time_is_the_mean_in_each_bucket() -> None:
    series = load_series(answered(FLIGHTS), range(3))
    first, second, idle = series.workers
    assert (len(first), series.bucket_s) == (LOAD_BUCKETS, pytest.approx(0.1))
    assert first[0] == pytest.approx(2), "two in flight"
    assert first[25] == pytest.approx(1)
    assert first[45] == pytest.approx(0, abs=1e-9)
    assert second[70] == pytest.approx(1)
    assert set(idle) == {0.0}
    assert sum(first) * series.bucket_s == pytest.approx(2 + 4)


def test_load_cv_is_zero_for_equal_loads_and_grows_with_difference() -> None:
    equal = [flight(number, number, (0.0, 1.0, 5.0)) for number in range(4)]
    one_sided = [flight(number, 0, (0.0, 1.0, 5.0)) for number in range(4)]
    assert policy_report(equal, 4, None, 0.0, 1.0).load_cv == pytest.approx(0)
    assert policy_report(one_sided, 4, None, 0.0, 1.0).load_cv == pytest.approx(3**0.5)
