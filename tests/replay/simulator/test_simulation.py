"""The simulation as a whole: determinism, what it must agree with, and what its options do."""

from dataclasses import replace

import pytest

from replay.arrivals import LoadSpec
from replay.bounds import bounds
from replay.simulator.flight import Flight
from replay.simulator.options import Faults, FleetSpec, Restart
from replay.simulator.run import Scenario, simulate_central
from replay.traces.trace import Trace

FAULTS = Faults(lag_s=0.2, loss=0.1, duplication=0.1, reorder=0.1, restarts=(Restart(1, 6.0), Restart(0, 11.0)))


def story(flights: list[Flight]) -> list[tuple[object, ...]]:
    return [
        (f.worker, f.sent_s, f.first_token_s, f.ended_s, f.cached_tokens, f.predicted_tokens, f.rejection)
        for f in flights
    ]


def hits(flights: list[Flight]) -> int:
    return sum(flight.cached_tokens for flight in flights)


@pytest.mark.parametrize("faults", [Faults(), FAULTS], ids=["well", "faulty"])
@pytest.mark.parametrize("load", [LoadSpec(2.0), LoadSpec(closed_loop=True, concurrency=9)], ids=["open", "closed"])
@pytest.mark.parametrize("blocks", [256, 48], ids=["room", "tight"])
def test_step_by_step_gives_the_same_bit_by_bit(run, sessions, small, faults, load, blocks) -> None:  # type: ignore[no-untyped-def]
    spec = replace(small, blocks=blocks)
    at_once = run(sessions, spec=spec, load=load, faults=faults)
    assert story(at_once) == story(run(sessions, spec=spec, load=load, faults=faults, step_by_step=True))


@pytest.mark.parametrize("policy", ["expected_work", "random", "power_of_two"])
def test_a_seed_fixes_everything(run, sessions, policy) -> None:  # type: ignore[no-untyped-def]
    first = story(run(sessions, policy=policy, faults=FAULTS, seed=3))
    assert first == story(run(sessions, policy=policy, faults=FAULTS, seed=3))
    assert first != story(run(sessions, policy=policy, faults=FAULTS, seed=4))


def test_round_robin_with_room_hits_what_endless_caches_would(run, sessions, small) -> None:  # type: ignore[no-untyped-def]
    """One worker, nothing evicted, one request at a time: the ideal, less the blocks that end within a block."""
    spec = replace(small, workers=1, blocks=20_000, block_size=sessions.block_tokens)
    flights = run(sessions, policy="round_robin", spec=spec, load=LoadSpec(concurrency=1))
    limits = bounds(sessions, spec.fleet_tokens)
    assert limits is not None
    assert hits(flights) / sessions.input_tokens == pytest.approx(limits.infinite, abs=1e-3)


def test_what_the_router_predicts_is_what_it_gets(run, sessions) -> None:  # type: ignore[no-untyped-def]
    """Events without lag, leases for what is in flight: next to no error."""
    flights = run(sessions)
    assert hits(flights) > 0.3 * sessions.input_tokens
    assert sum(flight.predicted_tokens for flight in flights) == pytest.approx(hits(flights), rel=0.02)


def test_lag_costs_hits_but_leases_keep_most(run, sessions) -> None:  # type: ignore[no-untyped-def]
    assert hits(run(sessions, faults=Faults(lag_s=20.0))) < hits(run(sessions))


def test_concurrency_bounds_what_is_in_flight(run, sessions) -> None:  # type: ignore[no-untyped-def]
    flights = run(sessions, load=LoadSpec(speedup=100.0, concurrency=5))
    steps = sorted([(f.sent_s, 1) for f in flights] + [(f.ended_s, -1) for f in flights])
    in_flight = most = 0
    for _, step in steps:
        in_flight += step
        most = max(most, in_flight)
    assert most == 5


def test_closed_loop_turns_follow_their_answers(run, sessions) -> None:  # type: ignore[no-untyped-def]
    flights = run(sessions, load=LoadSpec(speedup=50.0, closed_loop=True))
    ended: dict[str, float] = {}
    for flight in flights:
        request = flight.request
        if request.turn:
            assert flight.sent_s == pytest.approx(ended[request.session] + request.delay_s / 50.0)
        ended[request.session] = flight.ended_s


def test_a_restart_loses_the_cache_and_no_request(run, sessions) -> None:  # type: ignore[no-untyped-def]
    restarts = tuple(Restart(worker, 10.0) for worker in range(4))
    flights = run(sessions, faults=Faults(restarts=restarts))
    assert all(flight.ended_s is not None for flight in flights)
    assert hits(flights) < hits(run(sessions))
    lost = [f for f in run(sessions) if f.sent_s < 10.0 < f.ended_s]
    assert lost, "something was under way"
    assert all(flights[f.number].ended_s > 10.0 for f in lost)


def test_a_prompt_that_fits_no_worker_is_rejected(run, make_trace) -> None:  # type: ignore[no-untyped-def]
    flights = run(make_trace([{"input_tokens": 5000}, {"input_tokens": 50}]))
    assert "the KV cache pool is 4096 tokens" in flights[0].rejection
    assert flights[1].rejection is None


def test_a_policy_may_refuse(run, make_trace) -> None:  # type: ignore[no-untyped-def]
    flights = run(make_trace([{"input_tokens": 2000}] * 100), policy="ttft:slo_s=5")
    refused = [flight for flight in flights if flight.rejection is not None]
    assert 0 < len(refused) < 100
    assert "over the placement policy's limit" in refused[0].rejection


def test_the_central_queue_is_at_least_as_good(run, sessions, small) -> None:  # type: ignore[no-untyped-def]
    central = simulate_central(sessions, Scenario(small, LoadSpec(2.0), Faults()))
    for policy in ("expected_work", "round_robin"):
        flights = run(sessions, policy=policy, load=LoadSpec(2.0))
        assert mean_ttft(central) < mean_ttft(flights)


def test_the_central_queue_serves_all_from_a_pool_too_small_for_them(sessions: Trace, small: FleetSpec) -> None:
    flights = simulate_central(sessions, Scenario(replace(small, blocks=40), LoadSpec(3.0), Faults()))
    assert all(flight.ended_s is not None for flight in flights)


def mean_ttft(flights: list[Flight]) -> float:
    return sum(flight.first_token_s - flight.sent_s for flight in flights) / len(flights)
