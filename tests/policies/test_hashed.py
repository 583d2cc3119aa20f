from collections import Counter
from collections.abc import Sequence
from math import ceil
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.hashed import Chwbl, Session
from policies.rendezvous import preference
from policies.views import RequestView
from tests.policies.fleet import Worker, best, costs, prefixes, worker

KEYS = list(map(Random(7).getrandbits, [64] * 200))
POLICIES = {"chwbl": Chwbl(), "session": Session()}
KEYED = {"chwbl": "head_key", "session": "session_key"}

names = st.lists(st.text("abcdefgh:0123", min_size=1, max_size=8), min_size=2, max_size=8, unique=True)
keys = st.integers(0, 2**64 - 1)


def workers(names: Sequence[str]) -> list[Worker]:
    return [worker(name) for name in names]


def order(key: int, fleet: Sequence[Worker]) -> list[str]:
    ranks = preference(key, [c.key for c in fleet])
    return [c.key for _, c in sorted(zip(ranks, fleet, strict=True), key=lambda pair: pair[0])]


def keyed(name: str, key: int | None) -> RequestView:
    return RequestView(1000)._replace(**{KEYED[name]: key})


def place(name: str, key: int, fleet: Sequence[Worker]) -> str:
    [chosen] = best(POLICIES[name], keyed(name, key), *fleet)
    return chosen


# The order of a key


@given(names, st.integers(0, 100))
@settings(max_examples=10, deadline=None)
def test_every_rank_is_spread_evenly(names: list[str], seed: int) -> None:
    rng, fleet = Random(seed), workers(names)
    orders = [order(rng.getrandbits(64), fleet) for _ in range(400 * len(names))]
    for rank in (0, 1, len(names) - 1):
        count = Counter(each[rank] for each in orders)
        assert all(280 <= count[name] <= 520 for name in names), "six standard deviations about 400"


@given(names, keys, st.data())
def test_who_leaves_changes_nobody_else_s_order(names: list[str], key: int, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(names))
    before = order(key, workers(names))
    after = order(key, workers([name for name in names if name != gone]))
    assert after == [name for name in before if name != gone]


@given(keys)
def test_nearby_keys_are_not_near(key: int) -> None:
    fleet = workers("abcdefgh")
    firsts = {order((key + i) % 2**64, fleet)[0] for i in range(64)}
    assert len(firsts) > 4


# Affinity by key


@pytest.mark.parametrize("name", KEYED)
@given(names=names, seed=st.integers(0, 100))
@settings(max_examples=10, deadline=None)
def test_keys_are_balanced(name: str, names: list[str], seed: int) -> None:
    rng, fleet = Random(seed), workers(names)
    count = Counter(place(name, rng.getrandbits(64), fleet) for _ in range(300 * len(names)))
    assert all(200 <= count[each] <= 400 for each in names)


@pytest.mark.parametrize("name", KEYED)
@given(names=names)
@settings(max_examples=10, deadline=None)
def test_only_the_newcomer_s_keys_move(name: str, names: list[str]) -> None:
    *old, new = names
    moved = 0
    for key in KEYS:
        before, after = place(name, key, workers(old)), place(name, key, workers(names))
        assert after in (before, new)
        moved += after == new
    assert moved <= 3 * len(KEYS) / len(names), "about one in n"


@pytest.mark.parametrize(("name", "fallback"), [("chwbl", "least_requests"), ("session", "least_prefill")])
def test_without_a_key_load_decides(name: str, fallback: str) -> None:
    fleet = worker("a", active_requests=3, cached_tokens=900), worker("b", active_requests=1)
    assert costs(name, keyed(name, None), *fleet) == costs(fallback, RequestView(1000), *fleet)


@given(names, st.lists(st.integers(0, 3), max_size=60), st.sampled_from([1.0, 1.25, 2.0]))
def test_chwbl_bounds_every_load(names: list[str], requests: list[int], factor: float) -> None:
    fleet = {name: worker(name) for name in names}
    for number, key in enumerate(requests, start=1):
        [chosen] = best(Chwbl(factor), keyed("chwbl", key), *fleet.values())
        fleet[chosen] = fleet[chosen]._replace(active_requests=fleet[chosen].active_requests + 1)
        assert fleet[chosen].active_requests <= ceil(factor * number / len(names))


def test_chwbl_spills_to_the_key_s_next_choice_and_comes_back() -> None:
    fleet = {name: worker(name, active_requests=4) for name in "abcd"}
    first, second, *_ = order(KEYS[0], list(fleet.values()))
    fleet[first] = fleet[first]._replace(active_requests=6)
    assert place("chwbl", KEYS[0], list(fleet.values())) == second, "19 requests with this one: 6 are the most"
    fleet[first] = fleet[first]._replace(active_requests=5)
    assert place("chwbl", KEYS[0], list(fleet.values())) == first


def test_chwbl_spreads_one_shared_head_over_the_fleet() -> None:
    """Its documented failure: conversations behind one system prompt land anywhere, warm or not."""
    fleet = {name: worker(name) for name in "abcd"}
    for _ in range(8):
        chosen = place("chwbl", KEYS[0], list(fleet.values()))
        fleet[chosen] = fleet[chosen]._replace(active_requests=fleet[chosen].active_requests + 1)
    assert sorted(c.active_requests for c in fleet.values()) == [0, 2, 3, 3]


def test_session_stays_until_the_wait_is_too_long() -> None:
    fleet = {name: worker(name, queued_prefill_tokens=1000) for name in "abcd"}
    first, second, *_ = order(KEYS[0], list(fleet.values()))
    fleet[first] = fleet[first]._replace(queued_prefill_tokens=18_900, active_requests=50)
    assert place("session", KEYS[0], list(fleet.values())) == first
    fleet[first] = fleet[first]._replace(queued_prefill_tokens=19_100)
    assert place("session", KEYS[0], list(fleet.values())) == second


def test_session_sees_no_cache() -> None:
    """Its documented failure: what sessions share does not bring them together."""
    fleet = [worker(name) for name in "abcd"]
    first = order(KEYS[0], fleet)[0]
    warm = [c._replace(cached_tokens=0 if c.key == first else 900) for c in fleet]
    assert place("session", KEYS[0], warm) == first


# DualMap


def pair_of(request: RequestView, fleet: Sequence[Worker]) -> set[str]:
    return best("dualmap", request, *fleet)  # equally warm, equally loaded: both


def test_dualmap_s_key_is_the_shortest_prefix_that_two_places_can_carry() -> None:
    fleet = workers("abcdefgh")
    shares = prefixes(0.9, 0.26, 0.25, 0.1)
    assert pair_of(RequestView(1000, prefixes=shares), fleet) == set(order(shares[2].key, fleet)[:2])
    hot = prefixes(0.9, 0.8)
    assert pair_of(RequestView(1000, prefixes=hot), fleet) == set(order(hot[1].key, fleet)[:2]), "the longest"
    assert pair_of(RequestView(60, head_key=KEYS[0]), fleet) == set(order(KEYS[0], fleet)[:2])
    assert pair_of(RequestView(60), fleet) == set("abcdefgh")


def test_dualmap_takes_the_warmer_until_its_wait_exceeds_the_slo() -> None:
    request = RequestView(1000, head_key=KEYS[0])
    fleet = {name: worker(name) for name in "abcd"}
    warm, other, *_ = order(KEYS[0], list(fleet.values()))
    fleet[warm] = fleet[warm]._replace(cached_tokens=64, queued_prefill_tokens=5000)
    assert best("dualmap", request, *fleet.values()) == {warm}
    fleet[warm] = fleet[warm]._replace(queued_prefill_tokens=5001)
    assert best("dualmap", request, *fleet.values()) == {other}
    fleet[other] = fleet[other]._replace(queued_prefill_tokens=9000)
    assert best("dualmap", request, *fleet.values()) == {warm}, "both are late: the less work"


def test_dualmap_does_not_see_the_others() -> None:
    """Its documented failure: a third place may be warm and idle."""
    request = RequestView(1000, head_key=KEYS[0])
    fleet = workers("abcd")
    outside = order(KEYS[0], fleet)[2]
    busy = [worker(c.key, queued_prefill_tokens=4000) if c.key != outside else c for c in fleet]
    assert outside not in best("dualmap", request, *[c._replace(cached_tokens=900 * (c.key == outside)) for c in busy])


@given(names, keys)
def test_dualmap_s_pair_keeps_one_when_a_worker_joins(names: list[str], key: int) -> None:
    *old, new = names
    if len(old) < 2:
        return
    request = RequestView(1000, head_key=key)
    before, after = pair_of(request, workers(old)), pair_of(request, workers(names))
    assert after == before or (new in after and len(after & before) == 1)
