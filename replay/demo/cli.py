"""`warmroute demo`: options, what is printed where, exit codes."""

import asyncio
import sys

import click
import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from protocol.prompts import PromptEncoder
from replay.demo.report import DemoReport, as_json, as_table
from replay.demo.run import run_demo
from replay.demo.workload import bundled
from replay.errors import Interrupted, RequestFailed
from replay.processes import ChildFailed, interruptible
from worker.model_store import ModelBuildError, resolve

INTERRUPTED = 130


@click.command()
@click.option("--model", default="smollm2-135m", show_default=True, help="An alias, a local directory or a hub name.")
@click.option("--json", "json_wanted", is_flag=True, help="Print one JSON object instead of the table.")
def demo(model: str, json_wanted: bool) -> None:
    """Two workers and a router on this machine: the same conversations under round robin and by expected work.

    Progress goes to stderr, the result to stdout. Takes two to four minutes with the default model.
    """
    try:
        report = _run(model, _encoder(model))
    except (ChildFailed, RequestFailed) as error:
        raise click.ClickException(str(error)) from error
    except Interrupted as interrupted:
        sys.exit(interrupted.exit_code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    if json_wanted:
        click.echo(orjson.dumps(as_json(report)))
    else:
        Console().print(as_table(report))


def _encoder(model: str) -> PromptEncoder:
    """Builds the model on first use: once and with a progress bar, before the workers ask for it."""
    try:
        return PromptEncoder.load(str(resolve(model)))
    except (ValueError, ModelBuildError) as error:
        raise click.ClickException(str(error)) from error


def _run(model: str, encoder: PromptEncoder) -> DemoReport:
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    with progress:
        return asyncio.run(interruptible(run_demo(model, bundled(), encoder, progress)))
