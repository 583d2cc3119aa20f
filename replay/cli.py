"""`warmroute replay`: its options, which of its three modes they mean, and exit codes."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from replay.arrivals import LoadSpec
from replay.errors import CalibrationFailed, Interrupted, RequestFailed, UnusableEndpoint
from replay.live.api import Api
from replay.measures import NothingAnswered
from replay.options import (
    ABOVE_ZERO,
    COUNT,
    SECONDS,
    SEED,
    SHARE,
    Mode,
    ModeCommand,
    ModeOption,
    OutputPath,
    Policies,
    RestartType,
    UrlType,
    options_of,
    vocabulary_below,
)
from replay.simulator.command import run_simulation
from replay.traces.errors import FormatError
from replay.traces.reader import read_trace
from replay.traces.text import ModelTokens, TextTokens
from replay.traces.trace import Trace
from worker.options import TimingType

simulated = partial(click.option, cls=ModeOption, modes=(Mode.SIMULATION,))
live = partial(click.option, cls=ModeOption, modes=(Mode.LIVE,))
calibrated = partial(click.option, cls=ModeOption, modes=(Mode.CALIBRATION,))
traced = partial(click.option, cls=ModeOption, modes=(Mode.SIMULATION, Mode.LIVE))
real = partial(click.option, cls=ModeOption, modes=(Mode.LIVE, Mode.CALIBRATION))


@click.command(cls=ModeCommand)
@click.argument("trace_path", metavar="[TRACE]", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--live", "live_url", metavar="URL", type=UrlType(), help="Send TRACE to an OpenAI-compatible endpoint.")
@click.option("--calibrate", "calibrate_url", metavar="URL", type=UrlType(), help="Measure a running worker's timing.")
@traced("--speedup", type=ABOVE_ZERO, default=1.0, show_default=True, help="Divides all times of the trace.")
@traced("--closed-loop", is_flag=True, help="A session's next turn waits for the answer to the one before.")
@traced("--concurrency", type=COUNT, help="At most so many requests in flight.")
@traced("--window-s", type=ABOVE_ZERO, help="Only the requests of the trace's first so many seconds.")
@traced("--limit", type=COUNT, help="Only the first so many requests.")
@traced("--seed", type=SEED, help="Of all that is drawn.  [default: 0; --live: another each time, for caches remember]")
@traced("--tokenizer", help="Directory or hub name: texts have its tokens.  [default: a token for each character]")
@simulated(
    "--policy",
    "policies",
    type=Policies(),
    multiple=True,
    default=["default,round_robin"],
    help="NAME[:KEY=VALUE...], several after commas, `default`, `all`, or your own as package.module:factory.",
)
@simulated("--workers", type=COUNT, default=8, show_default=True)
@simulated("--blocks", type=COUNT, default=16_384, show_default=True, help="KV blocks of each worker.")
@simulated("--block-size", type=COUNT, default=64, show_default=True, help="Tokens of a block.")
@simulated("--max-batched-tokens", type=COUNT, default=8192, show_default=True, help="Tokens of one pass.")
@simulated("--max-num-seqs", type=COUNT, default=256, show_default=True, help="Sequences of one pass.")
@simulated(
    "--timing",
    type=TimingType(),
    default="polynomial",
    show_default=True,
    help="polynomial, linear:PREFILL_TOK_S,DECODE_MS or profile:FILE.",
)
@simulated("--lag-s", type=SECONDS, default=0.0, help="KV events come so much later.")
@simulated("--loss", type=SHARE, default=0.0, help="Share of KV event batches that get lost.")
@simulated("--duplication", type=SHARE, default=0.0, help="Share that comes twice.")
@simulated("--reorder", type=SHARE, default=0.0, help="Share that comes after the next one.")
@simulated("--restart", "restarts", type=RestartType(), multiple=True, help="A worker loses all it has: 0@60.")
@simulated("--step-by-step", is_flag=True, help="Each decode pass by itself: the same result, slowly.")
@real("--model", help="What the endpoint calls the model.  [default: the only one there]")
@real(
    "--vocab-size",
    "vocabulary",
    type=click.IntRange(min=2),
    default=32_000,
    show_default=True,
    callback=vocabulary_below,
    help="Prompts are made of token ids below this.",
)
@live(
    "--api",
    type=click.Choice([api.value for api in Api]),
    help="completions: token ids; chat: texts.  [default: chat if TRACE has chats]",
)
@live("--worker-url", "worker_urls", type=UrlType(), multiple=True, help="A worker whose /metrics tell its part.")
@calibrated("--longest-prompt", type=COUNT, default=2048, show_default=True, help="What the worker computes in a pass.")
@calibrated("--sequences", "max_sequences", type=COUNT, default=32, show_default=True, help="At most so many at once.")
@calibrated("--output", "output_path", type=OutputPath(), help="Write the profile here.")
@traced("--json", "json_path", type=OutputPath(), help="Write the result here, too.")
@simulated("--html", "html_path", type=OutputPath(), help="Write it as a page with charts, too.")
@click.pass_context
def replay(
    ctx: click.Context, /, trace_path: Path | None, live_url: str | None, calibrate_url: str | None, **_: Any
) -> None:
    """Replay TRACE through a simulated fleet under each policy: hit ratios against their bounds, latency, balance.

    With --live, send it to a real endpoint instead, and measure what it does. With --calibrate, and without TRACE,
    measure how long a running worker takes for what, for --timing profile:FILE.

    Reads any format that docs/replay.md lists, gzip or not. Progress goes to stderr, the result to stdout.
    """
    try:
        if calibrate_url is None:
            _replay(ctx, trace_path, live_url)
        else:
            _calibrate(ctx, trace_path, live_url, calibrate_url)
    except (FormatError, UnusableEndpoint, OSError) as error:
        raise click.UsageError(str(error)) from error
    except NothingAnswered as error:
        raise click.ClickException(f"every request failed: {error}") from error
    except (RequestFailed, CalibrationFailed) as error:
        raise click.ClickException(str(error)) from error
    except Interrupted as interrupted:
        sys.exit(interrupted.exit_code)


def _replay(ctx: click.Context, trace_path: Path | None, live_url: str | None) -> None:
    options = options_of(ctx, Mode.SIMULATION if live_url is None else Mode.LIVE)
    if trace_path is None:
        raise click.UsageError("Missing argument 'TRACE': what is to be replayed")
    trace = _trace(trace_path, options.pop("tokenizer"), options.pop("window_s"), options.pop("limit"))
    load = LoadSpec(options.pop("speedup"), options.pop("closed_loop"), options.pop("concurrency"))
    if live_url is None:
        run_simulation(trace, load, trace_name=trace_path.resolve().name, **options)
    else:
        from replay.live.command import run_live  # only here, as below: a simulation does without HTTP

        run_live(trace, load, live_url, **options)


def _calibrate(ctx: click.Context, trace_path: Path | None, live_url: str | None, calibrate_url: str) -> None:
    if live_url is not None:
        raise click.UsageError("--calibrate and --live exclude each other")
    if trace_path is not None:
        raise click.UsageError(f"--calibrate takes no TRACE, but {trace_path} was given: it makes its own prompts")
    options = options_of(ctx, Mode.CALIBRATION)
    if options["output_path"] is None:
        raise click.UsageError("--calibrate needs --output FILE, where the profile is to be written")
    from replay.calibration.command import run_calibration

    run_calibration(calibrate_url, **options)


def _trace(path: Path, tokenizer: str | None, window_s: float | None, limit: int | None) -> Trace:
    trace = read_trace(path, text=None if tokenizer is None else _tokens(tokenizer))
    in_window = [each for each in trace.requests if window_s is None or (each.arrival_s or 0.0) < window_s]
    return replace(trace, requests=tuple(in_window[:limit]))


def _tokens(tokenizer: str) -> TextTokens:
    try:
        return ModelTokens.load(tokenizer)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--tokenizer") from error
