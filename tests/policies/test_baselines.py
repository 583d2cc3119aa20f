from collections import Counter
from random import Random

from policies.registry import make_policy
from policies.views import RequestView
from tests.policies.fleet import best, chosen, worker


def test_round_robin_visits_all_before_any_twice() -> None:
    fleet, order, rng = {k: worker(k) for k in "abcd"}, [], Random(3)
    for number in range(1, 13):
        key = chosen(make_policy("round_robin"), RequestView(1), list(fleet.values()), rng)
        fleet[key] = fleet[key]._replace(last_placed=number)
        order.append(key)
    assert sorted(order[:4]) == list("abcd")
    assert order[:4] == order[4:8] == order[8:]


def test_least_requests_counts_requests_only() -> None:
    fleet = worker("few", active_requests=1, queued_prefill_tokens=9e4), worker("many", active_requests=2)
    assert best("least_requests", RequestView(100), *fleet) == {"few"}


def test_least_prefill_counts_what_waits_and_what_is_not_cached() -> None:
    warm, cold = worker("warm", cached_tokens=80, queued_prefill_tokens=70), worker("cold", active_requests=99)
    assert best("least_prefill", RequestView(100), warm, cold) == {"warm"}
    assert best("least_prefill", RequestView(100), warm._replace(queued_prefill_tokens=81), cold) == {"cold"}


def test_power_of_two_takes_the_fewer_requests_of_an_even_sample() -> None:
    fleet = [worker(f"w{i}", active_requests=i) for i in range(4)]
    rng = Random(1)
    wins: Counter[str] = Counter()
    for _ in range(3000):
        [key] = best("power_of_two", RequestView(1, draw=rng.getrandbits(64)), *fleet)
        wins[key] += 1
    pairs_won = {"w0": 3, "w1": 2, "w2": 1, "w3": 0}  # of the six pairs
    assert all(abs(wins[key] / 3000 - won / 6) < 0.05 for key, won in pairs_won.items())
    assert not wins["w3"], "the busiest of all loses every pair"
