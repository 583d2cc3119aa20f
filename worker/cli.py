"""The command `warmroute worker`."""

import asyncio
import logging
from typing import Any

import click
from click.core import ParameterSource

from worker.app import Worker, WorkerConfig
from worker.model_store import ModelBuildError
from worker.options import TimingType
from worker.timing import Timing

COUNT = click.IntRange(min=1)
OFF = "off"
ONLY_OF = {"device": "torch", "threads": "torch", "seed": "torch", "timing": "sim"}
"""Options that one engine alone has a use for."""


class CannotStart(click.ClickException):
    """What was asked for is not possible here, so nothing is served."""

    exit_code = 2


@click.command
@click.option("--model", required=True, help="A directory, a hub name, or an alias: smollm2-135m, tiny-random.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8101, show_default=True, help="0 takes any free one.")
@click.option(
    "--engine",
    type=click.Choice(["torch", "sim"]),
    default="torch",
    show_default=True,
    help="sim runs no model: it takes as long as one would, and always says the same.",
)
@click.option(
    "--timing",
    type=TimingType(),
    default="polynomial",
    show_default=True,
    help="What a simulated pass takes: polynomial, linear:PREFILL_TOK_S,DECODE_MS or profile:FILE.",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--block-size", type=COUNT, default=16, show_default=True, help="Tokens in a KV block.")
@click.option(
    "--blocks", type=COUNT, help="KV blocks.  [default: 1 GiB on a CPU, 85 % of a GPU's free memory, 16384 for sim]"
)
@click.option("--max-num-seqs", type=COUNT, default=128, show_default=True, help="Sequences that run at a time.")
@click.option("--max-batched-tokens", type=COUNT, default=2048, show_default=True, help="Tokens computed in a step.")
@click.option(
    "--max-model-len",
    type=COUNT,
    help="Longest prompt with its answer, in tokens; only sim takes more than the model can.  [default: the model's]",
)
@click.option("--kv-events", default="tcp://*:0", show_default=True, help="Where KV events are published, or 'off'.")
@click.option("--kv-replay", default="tcp://*:0", show_default=True, help="Where past events are replayed, or 'off'.")
@click.option("--served-model-name", help="What requests call the model.  [default: what --model says]")
@click.option("--threads", type=COUNT, help="CPU threads that compute.  [default: all cores]")
@click.option("--seed", type=int, default=0, show_default=True, help="For requests that bring no seed.")
@click.option("--prefix-caching/--no-prefix-caching", default=True, show_default=True)
@click.pass_context
def worker(ctx: click.Context, /, engine: str, timing: Timing, kv_events: str, kv_replay: str, **options: Any) -> None:
    """Serve a model: an engine with a prefix cache that publishes its KV events.

    In endpoints the host * stands for --host, and port 0 for a free one; GET /kv_event_sources tells the real ones.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _check_engine(ctx, engine)
    config = WorkerConfig(
        timing=timing if engine == "sim" else None,
        kv_events=_endpoint(kv_events),
        kv_replay=_endpoint(kv_replay),
        **options,
    )
    try:
        opened = Worker(config)
    except (OSError, ValueError, ModelBuildError) as error:
        raise CannotStart(_reason(error)) from error
    asyncio.run(opened.run(click.echo))


def _check_engine(ctx: click.Context, engine: str) -> None:
    for name, owner in ONLY_OF.items():
        if owner != engine and ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name} is for --engine {owner} only", ctx)


def _endpoint(value: str) -> str | None:
    return None if value == OFF else value


def _reason(error: Exception) -> str:
    """Without the number that an OSError puts in front."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
