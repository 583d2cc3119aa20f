import pytest

from policies.expected_work import ExpectedWork
from policies.views import RequestView
from tests.policies.fleet import best, costs, worker


def test_formula() -> None:
    c = worker("a", cached_tokens=600, queued_prefill_tokens=50, active_requests=2, decode_tokens=1000)
    request = RequestView(1000)
    assert costs("expected_work", request, c) == [pytest.approx(50 + 400 * (1 + 0.1 * 2) + 0.05 * 1000)]
    assert costs("expected_work:w=3:gamma=0:kappa=0", request, c) == [pytest.approx(50 + 1200)]


def test_keeps_affinity_until_the_wait_costs_more_than_the_prefill() -> None:
    cold = worker("cold")
    for queued, expected in ((800, "warm"), (950, "cold")):
        warm = worker("warm", cached_tokens=900, queued_prefill_tokens=queued)
        assert best("expected_work", RequestView(1000), warm, cold) == {expected}


def test_an_answer_s_length_is_not_known() -> None:
    """Its documented failure: one long generation ahead looks like one that is about to end."""
    busy, ending = (
        worker("busy", active_requests=1, decode_tokens=500),
        worker("b", active_requests=1, decode_tokens=500),
    )
    assert best("expected_work", RequestView(100), busy, ending) == {"busy", "b"}


def test_constants_follow_from_a_profile() -> None:
    """Dynamo's polynomial timing: 0.01518 ms a prompt token; 54 ms a decode step over 1,048,576 KV tokens."""
    policy = ExpectedWork.from_profile(
        prefill_ms_per_token=0.01518, decode_ms_per_kv_token=54.01 / 1048576, output_tokens=350, omega=0.05
    )
    assert (policy.w, policy.gamma) == (1.0, 0.05)
    assert policy.kappa == pytest.approx(0.0594, rel=0.01), "near what the simulator found"


def test_a_worker_with_free_decodes_has_no_decode_terms() -> None:
    policy = ExpectedWork.from_profile(prefill_ms_per_token=1, decode_ms_per_kv_token=0, output_tokens=100, omega=0)
    assert policy == ExpectedWork(1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"prefill_ms_per_token": 0.0}, "prefill_ms_per_token must be > 0, not 0.0"),
        ({"omega": -1.0}, "omega must be >= 0"),
        ({"output_tokens": -1.0}, "output_tokens"),
    ],
)
def test_a_profile_that_cannot_be(changed: dict[str, float], message: str) -> None:
    profile = {"prefill_ms_per_token": 1.0, "decode_ms_per_kv_token": 1.0, "output_tokens": 1.0}
    with pytest.raises(ValueError, match=message):
        ExpectedWork.from_profile(**profile | changed)
