"""One contract on every policy."""

from copy import deepcopy
from math import inf, isnan
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.choice import NoneSuitable, choose
from policies.registry import NAMES, make_policy
from policies.views import Candidates, Policy, PrefixShare, RequestView
from tests.policies.fleet import Worker, candidates, worker

VARIANTS = ["sticky_until_saturated:decode_bound=true:max_gap_s=1", "ttft:slo_s=0.5", "dualmap:slo_s=0.1"]

keys = st.integers(0, 2**64 - 1)
fleets = st.lists(
    st.builds(
        Worker,
        key=st.text("abcdefgh", min_size=1, max_size=4),
        cached_tokens=st.integers(0, 499),
        queued_prefill_tokens=st.floats(0, 1e6),
        active_requests=st.integers(0, 100),
        decode_tokens=st.integers(0, 10**6),
        mean_decode_tokens=st.floats(0, 1e6),
        waiting_requests=st.integers(0, 100),
        last_placed=st.integers(0, 1000),
        prefill_tokens_per_s=st.floats(1, 1e6) | st.just(inf),
        tree_tokens=st.integers(0, 10**7),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda c: c.key,
)
requests = st.builds(
    RequestView,
    prompt_tokens=st.integers(500, 100_000),
    head_key=st.none() | keys,
    session_key=st.none() | keys,
    follow_up=st.none() | st.booleans(),
    prefixes=st.lists(st.builds(PrefixShare, keys, st.integers(16, 499), st.floats(0, 1)), max_size=6).map(tuple),
    draw=keys,
)


def chosen(policy: Policy, request: RequestView, fleet: Candidates, seed: int) -> str | None:
    try:
        return fleet.keys[choose(policy, request, fleet, Random(seed)).position]
    except NoneSuitable:
        return None


def rows(places: Candidates) -> list[Worker]:
    columns = [getattr(places, field).tolist() for field in Worker._fields[1:]]
    return [Worker(*row) for row in zip(places.keys, *columns, strict=True)]


@pytest.mark.parametrize("name", [*NAMES, *VARIANTS])
@settings(max_examples=40)
@given(request_=requests, fleet=fleets, seed=st.integers(0, 9), data=st.data())
def test_contract(name: str, request_: RequestView, fleet: list[Worker], seed: int, data: st.DataObject) -> None:
    policy = make_policy(name)
    places = candidates(fleet)
    before = deepcopy((request_, fleet))
    costs = policy(request_, places)
    assert len(costs) == len(fleet)
    assert not any(isnan(cost) or cost == -inf for cost in costs)
    first = chosen(policy, request_, places, seed)
    assert first is not None or name.startswith("ttft"), "only an SLO refuses a request"
    assert (request_, rows(places)) == before, "inputs untouched"
    assert chosen(policy, request_, places, seed) == first, "same seed, same choice"
    shuffled = data.draw(st.permutations(fleet))
    assert chosen(policy, request_, candidates(shuffled), seed) == first, "whatever the order of candidates"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_chosen_from_nothing(name: str) -> None:
    with pytest.raises(ValueError, match="no candidates"):
        choose(make_policy(name), RequestView(10), Candidates((), *[np.empty(0)] * 9), Random(0))


@pytest.mark.parametrize("name", NAMES)
def test_ties_are_spread(name: str) -> None:
    fleet = candidates([worker("a"), worker("b"), worker("c")])
    rng = Random(0)
    policy = make_policy(name)
    seen = [choose(policy, RequestView(10, draw=rng.getrandbits(64)), fleet, rng).position for _ in range(300)]
    assert all(seen.count(i) > 60 for i in range(3))
