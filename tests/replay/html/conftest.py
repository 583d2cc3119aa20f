"""Comparisons to make pages of: a small real one, and others by hand."""

from dataclasses import replace

import pytest

from policies.registry import make_policy
from replay.arrivals import LoadSpec
from replay.simulator.comparison import Comparison, compare
from replay.simulator.options import Faults, FleetSpec, Restart
from replay.simulator.run import Scenario
from replay.traces.mix import Mix, generate_mix
from worker.timing import Linear

SPEC = FleetSpec(Linear(20_000.0, 10.0), workers=4, blocks=2000, block_size=16)
FAULTS = Faults(lag_s=0.5, loss=0.1, restarts=(Restart(2, 20.0),))
MIX = Mix(sessions=12, sessions_per_s=2.0, system_tokens=(200, 1000), answer_tokens=(5, 60))

POLICIES = ("expected_work", "round_robin", "dynamo:prefill_load_scale=16")


@pytest.fixture(scope="session")
def comparison() -> Comparison:
    """On a small mix of tenants, with faults."""
    scenario = Scenario(SPEC, LoadSpec(speedup=2.0), FAULTS, seed=7)
    policies = {name: make_policy(name) for name in POLICIES}
    return compare(generate_mix(MIX), scenario, policies, lambda name: lambda: None)


@pytest.fixture(scope="session")
def lengths_only(comparison: Comparison) -> Comparison:
    """As if the trace had told no prefixes."""
    reports = {
        name: replace(report, regret=replace(report.regret, capacity=None, routing=None), itl_ms=None)
        for name, report in comparison.policies.items()
    }
    return replace(comparison, bounds=None, policies=reports)
