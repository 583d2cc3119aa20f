import pytest

from policies.views import RequestView
from tests.policies.fleet import best, costs, worker

PROMPT = RequestView(1000)


@pytest.mark.parametrize(
    ("cached", "queued", "expected"),
    [
        (800, 17_000, "warm"),  # 17 s of waiting are borne for a prompt that is cached
        (800, 18_500, "cold"),
        (799, 700, "warm"),  # below the threshold the least work decides
        (799, 900, "cold"),
    ],
)
def test_sticky_holds_until_the_gap(cached: int, queued: float, expected: str) -> None:
    warm, cold = worker("warm", cached_tokens=cached, queued_prefill_tokens=queued), worker("cold")
    assert best("sticky_until_saturated", PROMPT, warm, cold) == {expected}


def test_sticky_measures_the_gap_against_the_best_of_the_others() -> None:
    warm = worker("warm", cached_tokens=900, queued_prefill_tokens=20_000)
    others = worker("busy", queued_prefill_tokens=50_000), worker("less_busy", queued_prefill_tokens=5000)
    assert best("sticky_until_saturated", PROMPT, warm, *others) == {"warm"}
    assert best("sticky_until_saturated:max_gap_s=14", PROMPT, warm, *others) == {"less_busy"}


def test_sticky_goes_for_the_least_loaded_of_the_warm() -> None:
    a = worker("a", cached_tokens=960, queued_prefill_tokens=500, active_requests=1)
    b = worker("b", cached_tokens=832, queued_prefill_tokens=100, active_requests=9)
    assert best("sticky_until_saturated", PROMPT, a, b, worker("cold")) == {"b"}
    assert best("sticky_until_saturated:decode_bound=true", PROMPT, a, b, worker("cold")) == {"a"}


def test_smetric_s_first_turn_goes_by_work() -> None:
    fleet = worker("warm", cached_tokens=500, queued_prefill_tokens=600), worker("cold")
    assert best("smetric", PROMPT._replace(follow_up=False), *fleet) == {"cold"}
    assert best("smetric", PROMPT._replace(follow_up=True), *fleet) == {"cold"}, "1.1 s there, 1.0625 allowed"
    assert best("smetric:slack=2", PROMPT._replace(follow_up=True), *fleet) == {"warm"}


def test_smetric_s_follow_up_leaves_for_the_least_work_and_not_for_the_next_best_hit() -> None:
    request = PROMPT._replace(follow_up=True)
    home = worker("home", cached_tokens=960, queued_prefill_tokens=3000)
    second = worker("second", cached_tokens=900, queued_prefill_tokens=950)
    assert best("smetric", request, home, second, worker("cold")) == {"cold"}


def test_smetric_takes_a_prompt_that_is_mostly_cached_for_a_follow_up() -> None:
    busy = worker("home", queued_prefill_tokens=480)
    assert best("smetric", PROMPT, busy._replace(cached_tokens=500), worker("cold")) == {"home"}
    assert best("smetric", PROMPT, busy._replace(cached_tokens=470), worker("cold")) == {"cold"}


def test_smetric_stays_with_a_session_that_grew_huge() -> None:
    """Its documented failure: while the SLO, which grows with the prompt, is met, balance does not count."""
    request = RequestView(100_000, follow_up=True)
    home = worker("home", cached_tokens=99_000, queued_prefill_tokens=6000, active_requests=50)
    assert best("smetric", request, home, worker("idle", cached_tokens=98_000)) == {"home"}


def test_two_tier_takes_the_longest_hit_while_load_is_even() -> None:
    fleet = worker("best", cached_tokens=501, active_requests=32), worker("idle", cached_tokens=400)
    assert best("two_tier", PROMPT, *fleet) == {"best"}


def test_two_tier_drops_all_affinity_at_once() -> None:
    """Its documented failures: both cliffs, and a restarted worker that is buried."""
    warm, idle = worker("warm", cached_tokens=960, active_requests=33), worker("idle")
    assert best("two_tier", PROMPT, warm, idle) == {"idle"}, "one request more than the threshold"
    assert best("two_tier:balance_abs_threshold=33", PROMPT, warm, idle) == {"warm"}
    restarted = worker("restarted", active_requests=30, tree_tokens=10)
    assert best("two_tier", PROMPT, restarted, worker("idle", tree_tokens=5000)) == {"restarted"}


def test_two_tier_wants_both_thresholds_passed() -> None:
    fleet = worker("warm", cached_tokens=960, active_requests=440), worker("other", active_requests=400)
    assert best("two_tier", PROMPT, *fleet) == {"warm"}, "40 more, but not 1.1 times"


def test_two_tier_s_tree_grows_with_what_is_on_its_way() -> None:
    fleet = worker("asked", tree_tokens=100, queued_prefill_tokens=2000), worker("other", tree_tokens=2000)
    assert best("two_tier", PROMPT, *fleet) == {"other"}


def test_preble_exploits_a_prefix_longer_than_the_rest() -> None:
    a = worker("a", cached_tokens=501, queued_prefill_tokens=9000)
    b = worker("b", cached_tokens=501, queued_prefill_tokens=8000, decode_tokens=10_000)
    assert best("preble", PROMPT, a, b, worker("idle")) == {"b"}, "the least loaded holder; the idle one is not asked"
    assert best("preble:kappa=0.2", PROMPT, a, b, worker("idle")) == {"a"}


def test_preble_explores_with_a_shorter_one() -> None:
    a = worker("a", cached_tokens=500, queued_prefill_tokens=700)
    assert best("preble", PROMPT, a, worker("idle")) == {"a"}
    assert best("preble:reuse=0", PROMPT, a, worker("idle")) == {"idle"}
    assert costs("preble", PROMPT, a) == [700 + 500 * 1.5]
