"""One contract on every policy, then what each of them is for."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.choice import choose
from policies.registry import NAMES, make_policy
from policies.views import Candidate, RequestView

candidates = st.lists(
    st.builds(
        Candidate,
        key=st.text("abcdefgh", min_size=1, max_size=4),
        cached_tokens=st.integers(0, 500),
        queued_prefill_tokens=st.floats(0, 1e6),
        active_requests=st.integers(0, 100),
        decode_tokens=st.integers(0, 10**6),
        last_placed=st.integers(0, 1000),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda c: c.key,
)
requests = st.builds(RequestView, prompt_tokens=st.integers(500, 100_000))


def worker(key: str, **fields: float) -> Candidate:
    return replace(Candidate(key, 0, 0.0, 0, 0, 0), **fields)


@pytest.mark.parametrize("name", NAMES)
@given(request_=requests, candidates=candidates, seed=st.integers(0, 9), data=st.data())
def test_contract(
    name: str, request_: RequestView, candidates: list[Candidate], seed: int, data: st.DataObject
) -> None:
    policy = make_policy(name)
    before = list(candidates)
    chosen = candidates[choose(policy, request_, candidates, Random(seed)).position]
    assert candidates == before, "inputs untouched"
    shuffled = data.draw(st.permutations(candidates))
    again = shuffled[choose(policy, request_, shuffled, Random(seed)).position]
    assert chosen.key == again.key, "same seed, same choice, whatever the order of candidates"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_chosen_from_nothing(name: str) -> None:
    with pytest.raises(ValueError, match="no candidates"):
        choose(make_policy(name), RequestView(10), [], Random(0))


@pytest.mark.parametrize("name", NAMES)
def test_ties_are_spread(name: str) -> None:
    fleet = [worker("a"), worker("b"), worker("c")]
    rng = Random(0)
    seen = [choose(make_policy(name), RequestView(10), fleet, rng).position for _ in range(300)]
    assert all(seen.count(i) > 60 for i in range(3))


def test_round_robin_visits_all_before_any_twice() -> None:
    fleet, order, rng = {k: worker(k) for k in "abcd"}, [], Random(3)
    for number in range(1, 13):
        candidates = list(fleet.values())
        key = candidates[choose(make_policy("round_robin"), RequestView(1), candidates, rng).position].key
        fleet[key] = replace(fleet[key], last_placed=number)
        order.append(key)
    assert sorted(order[:4]) == list("abcd")
    assert order[:4] == order[4:8] == order[8:]


def cost(candidate: Candidate, prompt_tokens: int, text: str = "expected_work") -> float:
    return make_policy(text)(RequestView(prompt_tokens), [candidate])[0]


def test_expected_work_formula() -> None:
    c = worker("a", cached_tokens=600, queued_prefill_tokens=50, active_requests=2, decode_tokens=1000)
    assert cost(c, 1000) == pytest.approx(50 + 400 * (1 + 0.1 * 2) + 0.05 * 1000)
    assert cost(c, 1000, "expected_work:w=3:gamma=0:kappa=0") == pytest.approx(50 + 1200)


def test_expected_work_keeps_affinity_until_the_wait_costs_more_than_the_prefill() -> None:
    cold = worker("cold")
    assert cost(worker("warm", cached_tokens=900, queued_prefill_tokens=800), 1000) < cost(cold, 1000)
    assert cost(worker("warm", cached_tokens=900, queued_prefill_tokens=950), 1000) > cost(cold, 1000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fastest", r"unknown policy 'fastest': one of .*round_robin"),
        ("expected_work:omega=1", r"no parameter 'omega': it takes w, gamma, kappa"),
        ("random:w=1", r"policy random has no parameter 'w': it takes none"),
        ("expected_work:w", r"w must be a number >= 0"),
        ("expected_work:w=-1", r"w must be a number >= 0, not '-1'"),
        ("expected_work:w=nan", r"w must be a number >= 0, not 'nan'"),
    ],
)
def test_bad_names_say_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_policy(text)
