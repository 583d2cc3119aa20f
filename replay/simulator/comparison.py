"""Several policies on one trace and one fleet, held against the same bounds."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from policies.views import Policy
from replay.bounds import Bounds, bounds
from replay.measures import measured_json, rounded, trace_json
from replay.simulator.report import PolicyReport, mean_ttft_ms, policy_report
from replay.simulator.run import Scenario, simulate, simulate_central
from replay.traces.trace import Trace

CENTRAL = "central queue"

OnEnded = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`bounds` is None for a trace of lengths only, whose hit ratios mean nothing."""

    trace: Trace
    scenario: Scenario
    bounds: Bounds | None
    central_ttft_ms: float
    policies: Mapping[str, PolicyReport]


def compare(
    trace: Trace, scenario: Scenario, policies: Mapping[str, Policy], track: Callable[[str], OnEnded]
) -> Comparison:
    """`track` gets the name of each run as it begins, and returns what is to be called for each request that ends.

    Raises measures.NothingAnswered if a run rejects every request.
    """
    limits = bounds(trace, scenario.spec.fleet_tokens)
    central_ttft_ms = mean_ttft_ms(simulate_central(trace, scenario, on_ended=track(CENTRAL)))
    reports = {}
    for name, policy in policies.items():
        started = perf_counter()
        flights = simulate(trace, scenario, policy, name, on_ended=track(name))
        wall_s = perf_counter() - started
        reports[name] = policy_report(flights, scenario.spec.workers, limits, central_ttft_ms, wall_s)
    return Comparison(trace, scenario, limits, central_ttft_ms, reports)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """What `--json` writes."""
    return {
        "trace": trace_json(comparison.trace),
        "fleet": _fleet_json(comparison.scenario),
        "bounds": asdict(comparison.bounds) if comparison.bounds else None,
        "policies": {name: _policy_json(report) for name, report in comparison.policies.items()},
    }


def _fleet_json(scenario: Scenario) -> dict[str, Any]:
    spec = asdict(scenario.spec)
    spec["timing"] = {"name": type(scenario.spec.timing).__name__.lower(), **spec["timing"]}
    return {**spec, **asdict(scenario.load), **asdict(scenario.faults), "seed": scenario.seed}


def _policy_json(report: PolicyReport) -> dict[str, Any]:
    regret = {name: rounded(value) for name, value in asdict(report.regret).items()}
    return {**measured_json(report), "regret": regret, "wall_s": round(report.wall_s, 3)}
