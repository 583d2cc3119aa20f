"""What the page says in words: what was run, and what came of it."""

from collections.abc import Iterator
from dataclasses import asdict

from markupsafe import Markup

from replay.arrivals import LoadSpec
from replay.html.numbers import SPACE, count, duration, percent
from replay.html.ranking import Ranked, baseline, first_to_finish
from replay.simulator.comparison import Comparison
from replay.simulator.options import Faults, FleetSpec
from replay.traces.trace import Trace
from worker.timing import Timing


def facts(comparison: Comparison) -> dict[str, str]:
    """All that has to be known to run the same again."""
    scenario = comparison.scenario
    return {
        "Trace": _trace(comparison.trace),
        "Fleet": _fleet(scenario.spec),
        "Timing": _timing(scenario.spec.timing),
        "Load": _load(scenario.load),
        "Faults": ", ".join(_faults(scenario.faults)) or "none",
        "Seed": f"{scenario.seed}" + (", step by step" if scenario.step_by_step else ""),
    }


def _trace(trace: Trace) -> str:
    requests = len(trace.requests)
    return (
        f"{count(requests, 'request')} ({trace.format}) over {duration(trace.span_s * 1e3)}, on average "
        f"{trace.input_tokens / requests:,.0f} tokens in and {trace.output_tokens / requests:,.0f} out"
    )


def _fleet(spec: FleetSpec) -> str:
    return (
        f"{count(spec.workers, 'worker')} with {count(spec.blocks, 'block')} of {spec.block_size} tokens each; "
        f"a pass takes {spec.max_batched_tokens:,} tokens of {count(spec.max_num_seqs, 'sequence')} at most"
    )


def _timing(timing: Timing) -> str:
    parameters = ", ".join(f"{name} {value:g}" for name, value in asdict(timing).items())  # type: ignore[call-overload]
    return " ".join(filter(None, (type(timing).__name__.lower(), parameters)))


def _load(load: LoadSpec) -> str:
    speed = "the recorded speed" if load.speedup == 1 else f"{load.speedup:g} times the recorded speed"
    parts = ["closed loop" if load.closed_loop else "open loop", speed]
    if load.concurrency is not None:
        parts.append(f"at most {load.concurrency:,} in flight")
    return ", ".join(parts)


def _faults(faults: Faults) -> Iterator[str]:
    if faults.lag_s:
        yield f"KV events {faults.lag_s:g}{SPACE}s late"
    shares = {"lost": faults.loss, "sent twice": faults.duplication, "out of order": faults.reorder}
    yield from (f"{percent(share)} of them {what}" for what, share in shares.items() if share)
    yield from (f"worker {restart.worker} restarts at {restart.at_s:g}{SPACE}s" for restart in faults.restarts)


def reasons(comparison: Comparison, leader: Ranked) -> Iterator[Markup]:
    """What lies behind the latency of the policy that leads."""
    yield _hits(comparison, leader)
    yield _balance(comparison, leader)
    if rejected := leader.report.rejected:
        requests = len(comparison.trace.requests)
        yield Markup("{} of {} could not fit a worker and were rejected.").format(
            f"{rejected:,}", count(requests, "request")
        )


def latency(ranks: list[Ranked]) -> Iterator[Markup]:
    """Which policy is best, and by how much."""
    leader, finisher, base = ranks[0], first_to_finish(ranks), baseline(ranks)
    ttft_ms, e2e_ms = leader.report.ttft_ms.mean, finisher.report.e2e_ms.mean
    ttft, e2e = strong(duration(ttft_ms)), strong(duration(e2e_ms))
    if base is None:
        yield Markup("{}: mean TTFT {}, mean end to end {}.").format(strong(leader.name), ttft, e2e)
        return
    than = _difference(ttft_ms, base.report.ttft_ms.mean)
    yield Markup("{} answers first: mean TTFT {}, {} {}.").format(strong(leader.name), ttft, than, base.name)
    who = Markup("It also") if finisher == leader else strong(finisher.name)
    than = "" if finisher == base else f", {_difference(e2e_ms, base.report.e2e_ms.mean)} {base.name}"
    yield Markup("{} finishes first: mean end to end {}{}.").format(who, e2e, than)


def _difference(value: float, base: float) -> str:
    change = value / base - 1
    return f"{abs(change):.0%}".replace("%", f"{SPACE}%") + (" below" if change <= 0 else " above")


def _hits(comparison: Comparison, leader: Ranked) -> Markup:
    bounds = comparison.bounds
    if bounds is None:
        return Markup("The trace has lengths only: what its prompts share, and so any hit, cannot be known.")
    return Markup(
        "{} found {} of all prompt tokens in cache; one LRU cache of the whole fleet&#39;s size "
        "would have had {}, an endless one {}."
    ).format(
        leader.name,
        strong(percent(leader.report.hit_ratio)),
        percent(bounds.pooled_lru),
        percent(bounds.infinite),
    )


def _balance(comparison: Comparison, leader: Ranked) -> Markup:
    workers = comparison.scenario.spec.workers
    return Markup("Its busiest worker computed {} of all tokens, where an even share is {}.").format(
        percent(leader.report.max_share), percent(1 / workers)
    )


def strong(text: str) -> Markup:
    return Markup("<b>{}</b>").format(text)
