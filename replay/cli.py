"""`warmroute replay`: options, what is printed where, exit codes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from policies.registry import DEFAULT, NAMES, make_policy
from policies.views import Policy
from replay.html.page import as_html
from replay.output import OutputPath
from replay.simulator.comparison import Comparison, as_json, compare
from replay.simulator.options import Faults, FleetSpec, LoadSpec, Restart
from replay.simulator.report import NothingAnswered
from replay.simulator.run import Scenario
from replay.simulator.table import as_table
from replay.traces.errors import FormatError
from replay.traces.reader import read_trace
from replay.traces.trace import Trace
from worker.cli import TimingType

COUNT = click.IntRange(min=1)
SHARE = click.FloatRange(0, 1, max_open=True)
SECONDS = click.FloatRange(min=0)


class RestartType(click.ParamType[Restart]):
    name = "worker@seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Restart:
        worker, _, at_s = value.partition("@")
        try:
            restart = Restart(int(worker), float(at_s))
        except ValueError:
            self.fail(f"{value!r}: expected WORKER@SECONDS, such as 0@60", param, ctx)
        if restart.worker < 0 or not 0 <= restart.at_s < float("inf"):
            self.fail(f"{value!r}: workers count from 0, seconds from the trace's beginning", param, ctx)
        return restart


class Policies(click.ParamType[dict[str, Policy]]):
    """Names to policies; of a comma list each one."""

    name = "policies"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Policy]:
        names = [each for text in value.split(",") for each in (NAMES if text == "all" else (text,))]
        try:
            return {name: make_policy(name) for name in (DEFAULT if name == "default" else name for name in names)}
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.argument("trace_path", metavar="TRACE", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--policy",
    "policies",
    type=Policies(),
    multiple=True,
    default=["default,round_robin"],
    help="NAME[:KEY=VALUE...], several after commas, `default`, `all`, or your own as package.module:factory.",
)
@click.option("--workers", type=COUNT, default=8, show_default=True)
@click.option("--blocks", type=COUNT, default=16_384, show_default=True, help="KV blocks of each worker.")
@click.option("--block-size", type=COUNT, default=64, show_default=True, help="Tokens of a block.")
@click.option("--max-batched-tokens", type=COUNT, default=8192, show_default=True, help="Tokens of one pass.")
@click.option("--max-num-seqs", type=COUNT, default=256, show_default=True, help="Sequences of one pass.")
@click.option(
    "--timing",
    type=TimingType(),
    default="polynomial",
    show_default=True,
    help="polynomial, linear:PREFILL_TOK_S,DECODE_MS or profile:FILE.",
)
@click.option("--speedup", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True)
@click.option("--closed-loop", is_flag=True, help="A session's next turn waits for the answer to the one before.")
@click.option("--concurrency", type=COUNT, help="At most so many requests in flight.")
@click.option("--limit", type=COUNT, help="Only the first so many requests.")
@click.option("--lag-s", type=SECONDS, default=0.0, help="KV events come so much later.")
@click.option("--loss", type=SHARE, default=0.0, help="Share of KV event batches that get lost.")
@click.option("--duplication", type=SHARE, default=0.0, help="Share that comes twice.")
@click.option("--reorder", type=SHARE, default=0.0, help="Share that comes after the next one.")
@click.option("--restart", "restarts", type=RestartType(), multiple=True, help="A worker loses all it has: 0@60.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--step-by-step", is_flag=True, help="Each decode pass by itself: the same result, slowly.")
@click.option("--json", "json_path", type=OutputPath(), help="Write the result here, too.")
@click.option("--html", "html_path", type=OutputPath(), help="Write it as a page with charts, too.")
def replay(
    trace_path: Path,
    policies: Sequence[dict[str, Policy]],
    limit: int | None,
    json_path: Path | None,
    html_path: Path | None,
    **options: Any,
) -> None:
    """Replay TRACE through a simulated fleet under each policy: hit ratios against their bounds, latency, balance.

    Reads any format that docs/replay.md lists, gzip or not. Progress goes to stderr, the result to stdout.
    """
    scenario = _scenario(**options)
    try:
        trace = _limited(read_trace(trace_path), limit)
        comparison = _run(trace, scenario, {name: policy for each in policies for name, policy in each.items()})
    except (FormatError, OSError) as error:
        raise click.UsageError(str(error)) from error
    except NothingAnswered as error:
        raise click.ClickException(f"every request was rejected: {error}") from error
    if json_path is not None:
        json_path.write_bytes(orjson.dumps(as_json(comparison), option=orjson.OPT_INDENT_2))
    if html_path is not None:
        html_path.write_text(as_html(comparison, trace_path.resolve().name), encoding="utf-8")
    Console().print(as_table(comparison))


def _scenario(
    *,
    speedup: float,
    closed_loop: bool,
    concurrency: int | None,
    lag_s: float,
    loss: float,
    duplication: float,
    reorder: float,
    restarts: tuple[Restart, ...],
    seed: int,
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
    load = LoadSpec(speedup, closed_loop, concurrency)
    return Scenario(spec, load, Faults(lag_s, loss, duplication, reorder, restarts), seed, step_by_step)


def _limited(trace: Trace, limit: int | None) -> Trace:
    return replace(trace, requests=trace.requests[:limit])


def _run(trace: Trace, scenario: Scenario, policies: dict[str, Policy]) -> Comparison:
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )

    def track(name: str) -> Callable[[], object]:
        task = progress.add_task(name, total=len(trace.requests))
        return lambda: progress.advance(task)

    with progress:
        return compare(trace, scenario, policies, track)
