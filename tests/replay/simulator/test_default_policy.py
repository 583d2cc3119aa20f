"""What the default policy has to hold on a trace of hot spots, one of those that its constants were chosen by."""

from pathlib import Path

import pytest

from policies.registry import DEFAULT, make_policy
from replay.arrivals import LoadSpec
from replay.simulator.options import Faults, FleetSpec
from replay.simulator.report import policy_report
from replay.simulator.run import Scenario, simulate
from replay.traces.reader import read_trace
from worker.timing import Polynomial

ARXIV = Path(__file__).parents[4] / "shared" / "traces" / "mooncake_arxiv_first1000.jsonl"
WORKERS = 8


@pytest.mark.skipif(not ARXIV.exists(), reason=f"NOT CHECKED on real traffic: {ARXIV} is absent")
def test_serves_sooner_than_dynamo_s_best_and_keeps_the_fleet_even() -> None:
    trace = read_trace(ARXIV)
    scenario = Scenario(FleetSpec(Polynomial(), workers=WORKERS), LoadSpec(speedup=3.0), Faults())
    default, dynamo, in_turn = (
        policy_report(simulate(trace, scenario, make_policy(name), name), WORKERS, None, 0.0, 0.0)
        for name in (DEFAULT, "dynamo:prefill_load_scale=16", "round_robin")
    )
    assert default.ttft_ms.mean <= dynamo.ttft_ms.mean
    assert default.e2e_ms.mean <= dynamo.e2e_ms.mean
    assert default.ttft_ms.p50 <= in_turn.ttft_ms.p50
    assert default.max_share <= 1.5 / WORKERS
