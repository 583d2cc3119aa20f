"""Against a toy of NVIDIA Dynamo's simulator that agrees with the original within a few percent, and its figures."""

import json
import runpy
from pathlib import Path
from random import Random
from typing import Any

import pytest

from policies.registry import make_policy
from replay.arrivals import LoadSpec
from replay.simulator.flight import Flight
from replay.simulator.options import Faults, FleetSpec
from replay.simulator.report import policy_report
from replay.simulator.run import Scenario, simulate
from replay.traces.reader import read_trace
from worker.timing import Polynomial

SHARED = Path(__file__).parents[4] / "shared"
ARXIV = SHARED / "traces" / "mooncake_arxiv_first1000.jsonl"
TOY = SHARED / "peers" / "toy_simulator.py"
WORKERS, SPEEDUP = 8, 3.0

pytestmark = pytest.mark.skipif(
    not (ARXIV.exists() and TOY.exists()), reason=f"NOT CHECKED against the toy: {ARXIV} or {TOY} is absent"
)


def ours(policy: str) -> list[Flight]:
    scenario = Scenario(FleetSpec(Polynomial(), workers=WORKERS), LoadSpec(SPEEDUP), Faults())
    return simulate(read_trace(ARXIV), scenario, make_policy(policy), policy)


def toys(policy: str) -> dict[str, Any]:
    toy = runpy.run_path(str(TOY))
    rows = [json.loads(line) for line in ARXIV.read_text().splitlines()]
    result: dict[str, Any] = toy["simulate"](rows, toy["make_policy"](policy, Random(0)), WORKERS, SPEEDUP)
    return result


@pytest.mark.parametrize(
    ("policy", "toy_policy", "tolerance"),
    [
        ("round_robin", "rr", 0.01),
        ("dynamo:prefill_load_scale=16", "dynamo:16", 0.05),
        ("lmetric", "lmetric", 0.05),
    ],
)
def test_agrees_with_the_toy(policy: str, toy_policy: str, tolerance: float) -> None:
    """Round robin to the percent. A policy sees a little more in the toy: no lag, and how long answers will be."""
    report, toy = policy_report(ours(policy), WORKERS, None, 0.0, 0.0), toys(toy_policy)
    assert report.hit_ratio == pytest.approx(toy["hit_ratio"], abs=0.01)
    assert report.ttft_ms.mean == pytest.approx(toy["ttft_ms"]["mean"], rel=tolerance)
    assert report.e2e_ms.mean == pytest.approx(toy["e2e_ms"], rel=tolerance)
    assert report.max_share == pytest.approx(toy["max_share"], abs=0.02)
