from math import inf, nan
from random import Random

import pytest

from policies.choice import NoneSuitable, choose
from policies.views import RequestView
from tests.policies.fleet import candidates, worker

FLEET = candidates([worker("a"), worker("b"), worker("c")])


def test_the_lowest_cost_wins_and_all_costs_are_told() -> None:
    choice = choose(lambda request, candidates: [2.0, 1.0, inf], RequestView(1), FLEET, Random(0))
    assert choice.position == 1
    assert choice.costs.tolist() == [2.0, 1.0, inf]


def test_an_infinite_cost_is_never_chosen() -> None:
    rng = Random(0)
    seen = {
        choose(lambda request, candidates: [inf, 1e300, 1e300], RequestView(1), FLEET, rng).position for _ in "x" * 50
    }
    assert seen == {1, 2}


def test_infinite_costs_everywhere_are_an_error() -> None:
    with pytest.raises(NoneSuitable, match="each of 3 workers is over the placement policy's limit"):
        choose(lambda request, candidates: [inf] * 3, RequestView(1), FLEET, Random(0))


def test_a_policy_that_loses_count_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"gave costs of shape \(1,\) for 3 candidates"):
        choose(lambda request, candidates: [1.0], RequestView(1), FLEET, Random(0))


def test_a_cost_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a number"):
        choose(lambda request, candidates: [1.0, nan, 0.0], RequestView(1), FLEET, Random(0))
