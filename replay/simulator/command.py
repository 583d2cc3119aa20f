"""`warmroute replay TRACE`: from the command's options to a comparison that is shown and written."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from policies.views import Policy
from replay.arrivals import LoadSpec
from replay.output import progress_bars, show, write_json
from replay.simulator.comparison import Comparison, as_json, compare
from replay.simulator.options import Faults, FleetSpec, Restart
from replay.simulator.run import Scenario
from replay.simulator.table import as_table
from replay.traces.trace import Trace


def run_simulation(
    trace: Trace,
    load: LoadSpec,
    *,
    trace_name: str,
    policies: Sequence[dict[str, Policy]],
    json_path: Path | None,
    html_path: Path | None,
    **scenario: Any,
) -> None:
    """Raises NothingAnswered, click.UsageError for options that do not fit together, and OSError."""
    named = {name: policy for each in policies for name, policy in each.items()}
    comparison = _compare(trace, _scenario(load, **scenario), named)
    if json_path is not None:
        write_json(json_path, as_json(comparison))
    if html_path is not None:
        from replay.html.page import as_html  # only here: it brings jinja2

        html_path.write_text(as_html(comparison, trace_name), encoding="utf-8")
    show(as_table(comparison))


def _scenario(
    load: LoadSpec,
    *,
    lag_s: float,
    loss: float,
    duplication: float,
    reorder: float,
    restarts: tuple[Restart, ...],
    seed: int | None,
    step_by_step: bool,
    **fleet: Any,
) -> Scenario:
    spec = FleetSpec(**fleet)
    if spec.max_batched_tokens < spec.max_num_seqs:
        raise click.UsageError("--max-batched-tokens must be at least --max-num-seqs")
    for restart in restarts:
        if restart.worker >= spec.workers:
            raise click.UsageError(
                f"--restart {restart.worker}@{restart.at_s:g}: the last worker is {spec.workers - 1}"
            )
    return Scenario(spec, load, Faults(lag_s, loss, duplication, reorder, restarts), seed or 0, step_by_step)


def _compare(trace: Trace, scenario: Scenario, policies: dict[str, Policy]) -> Comparison:
    progress = progress_bars()

    def track(name: str) -> Callable[[], object]:
        task = progress.add_task(name, total=len(trace.requests))
        return lambda: progress.advance(task)

    with progress:
        return compare(trace, scenario, policies, track)
