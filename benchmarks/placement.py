"""Where policies stand, cell by cell, in the simulator of `warmroute replay`.

    python benchmarks/placement.py grid TRACE      each load, fleet size and event lag: every policy against the best
    python benchmarks/placement.py faults TRACE    one policy as its news of the caches gets late, lost or void

Loads are shares of the knee of the fleet: the speed-up of the trace at which one central queue over one shared cache,
which no policy takes part in, has twice the mean TTFT that it has when nothing waits.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean

import click
from rich.console import Console
from rich.table import Table

from policies.registry import DEFAULT, NAMES, make_policy
from replay.arrivals import LoadSpec
from replay.simulator.flight import Flight
from replay.simulator.options import Faults, FleetSpec, Restart
from replay.simulator.run import Scenario, simulate, simulate_central
from replay.traces.reader import read_trace
from replay.traces.trace import Trace
from worker.timing import Polynomial

IDLE_SPEEDUP = 0.01
KNEE_STEPS = 8


@dataclass(frozen=True, slots=True)
class Cell:
    workers: int
    load: float  # share of the knee
    speedup: float
    lag_s: float


@dataclass(frozen=True, slots=True)
class Result:
    hit_ratio: float
    ttft_ms: float  # mean
    e2e_ms: float  # mean


class Lab:
    """Runs one trace; handed to processes whole."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @property
    def span_s(self) -> float:
        return self._trace.span_s

    def knee(self, workers: int) -> float:
        """By halving, between an idle fleet and one that is surely overrun."""
        idle_ms = self._central_ttft_ms(workers, IDLE_SPEEDUP)
        low, high = IDLE_SPEEDUP, 1.0
        while self._central_ttft_ms(workers, high) < 2 * idle_ms:
            low, high = high, 2 * high
        for _ in range(KNEE_STEPS):
            middle = (low + high) / 2
            if self._central_ttft_ms(workers, middle) < 2 * idle_ms:
                low = middle
            else:
                high = middle
        return low

    def run(self, policy: str, cell: Cell, faults: Faults) -> Result | None:
        """None: the policy refused requests, and what it did with the others compares with nobody's."""
        scenario = Scenario(FleetSpec(Polynomial(), workers=cell.workers), LoadSpec(cell.speedup), faults)
        flights = simulate(self._trace, scenario, make_policy(policy), policy)
        if any(flight.rejection is not None for flight in flights):
            return None
        prompt_tokens = sum(flight.request.input_tokens for flight in flights)
        cached_tokens = sum(flight.cached_tokens for flight in flights)
        return Result(cached_tokens / prompt_tokens, fmean(map(_ttft_ms, flights)), fmean(map(_e2e_ms, flights)))

    def _central_ttft_ms(self, workers: int, speedup: float) -> float:
        scenario = Scenario(FleetSpec(Polynomial(), workers=workers), LoadSpec(speedup), Faults())
        return fmean(map(_ttft_ms, simulate_central(self._trace, scenario)))


def _ttft_ms(flight: Flight) -> float:
    assert flight.first_token_s is not None, "without a limit nothing is rejected"
    return (flight.first_token_s - flight.sent_s) * 1e3


def _e2e_ms(flight: Flight) -> float:
    assert flight.ended_s is not None, "without a limit nothing is rejected"
    return (flight.ended_s - flight.sent_s) * 1e3


class Numbers(click.ParamType[tuple[float, ...]]):
    name = "numbers"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if not isinstance(value, str):
            return tuple(value)  # type: ignore[arg-type]
        try:
            return tuple(map(float, value.split(",")))
        except ValueError:
            self.fail(f"{value!r}: expected numbers with commas between", param, ctx)


TRACE = click.argument("trace_path", metavar="TRACE", type=click.Path(exists=True, path_type=Path))
LIMIT = click.option("--limit", type=click.IntRange(min=1), help="Only the first so many requests.")
PROCESSES = click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True)


@click.group()
def main() -> None:
    pass


@main.command()
@TRACE
@LIMIT
@PROCESSES
@click.option("--workers", type=Numbers(), default="4,8,16", show_default=True)
@click.option("--loads", type=Numbers(), default="0.5,0.7,0.9,1.1", show_default=True, help="Shares of the knee.")
@click.option("--lags-s", type=Numbers(), default="0,2", show_default=True, help="Of KV events.")
@click.option("--policies", default=",".join(NAMES), show_default="all", help="With commas between.")
def grid(
    trace_path: Path,
    limit: int | None,
    processes: int,
    workers: Sequence[float],
    loads: Sequence[float],
    lags_s: Sequence[float],
    policies: str,
) -> None:
    """Mean TTFT and mean time to the end of each policy, in percent above the best policy of the cell."""
    lab, names = _lab(trace_path, limit), policies.split(",")
    with ProcessPoolExecutor(processes) as pool:
        sizes = [int(each) for each in workers]
        knees = dict(zip(sizes, pool.map(lab.knee, sizes), strict=True))
        cells = [Cell(n, load, load * knees[n], lag) for n, load, lag in product(sizes, loads, lags_s)]
        runs = [pool.submit(lab.run, name, cell, Faults(lag_s=cell.lag_s)) for cell in cells for name in names]
        results = (run.result() for run in runs)
        table = Table("workers", "load", "speed-up", "lag s", "best TTFT, end to end ms", *names)
        for cell in cells:
            standings = _standings([next(results) for _ in names])
            row = [f"{cell.workers}", f"{cell.load:g}", f"{cell.speedup:.2f}", f"{cell.lag_s:g}", *standings]
            click.echo(" | ".join(row), err=True)  # hours of work: none of it is to be lost with the rest
            table.add_row(*row)
    Console(width=200).print(table)


def _standings(row: Sequence[Result | None]) -> Iterator[str]:
    answered = [result for result in row if result]
    best_ttft_ms, best_e2e_ms = min(result.ttft_ms for result in answered), min(result.e2e_ms for result in answered)
    yield f"{best_ttft_ms:.0f}, {best_e2e_ms:.0f}"
    for result in row:
        if result:
            yield f"{result.ttft_ms / best_ttft_ms - 1:+.0%} {result.e2e_ms / best_e2e_ms - 1:+.0%}"
        else:
            yield "refuses"


@main.command()
@TRACE
@LIMIT
@PROCESSES
@click.option("--workers", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--load", type=float, default=0.9, show_default=True, help="Share of the knee.")
@click.option("--policy", default=DEFAULT, show_default=True)
def faults(trace_path: Path, limit: int | None, processes: int, workers: int, load: float, policy: str) -> None:
    """One kind of fault at a time, growing."""
    lab = _lab(trace_path, limit)
    speedup = load * lab.knee(workers)
    cell, span_s = Cell(workers, load, speedup, 0.0), lab.span_s / speedup
    cases = {
        "none": Faults(),
        **{f"lag {lag:g} s": Faults(lag_s=lag) for lag in (0.1, 0.5, 1, 2, 5, 20)},
        **{f"loss {loss:.1%}": Faults(loss=loss) for loss in (0.001, 0.01, 0.1, 0.5)},
        **{f"{count} restarts": Faults(restarts=tuple(_restarts(count, workers, span_s))) for count in (1, 8, 64)},
    }
    with ProcessPoolExecutor(processes) as pool:
        runs = [pool.submit(lab.run, policy, cell, each) for each in cases.values()]
        runs.append(pool.submit(lab.run, "round_robin", cell, Faults()))
        results = [run.result() for run in runs]
    table = Table("fault", "hit %", "mean TTFT ms", "mean end to end ms", title=f"{policy}, speed-up {speedup:.2f}")
    for name, result in zip([*cases, "none, round_robin"], results, strict=True):
        if result is None:
            table.add_row(name, "refuses")
            continue
        table.add_row(name, f"{result.hit_ratio:.1%}", f"{result.ttft_ms:.0f}", f"{result.e2e_ms:.0f}")
    Console().print(table)


def _restarts(count: int, workers: int, span_s: float) -> Iterator[Restart]:
    """One worker after the other, evenly over the run."""
    for number in range(count):
        yield Restart(number % workers, span_s * (number + 1) / (count + 1))


def _lab(trace_path: Path, limit: int | None) -> Lab:
    trace = read_trace(trace_path)
    return Lab(replace(trace, requests=trace.requests[:limit]))


if __name__ == "__main__":
    main()
