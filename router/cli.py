"""`warmroute router`: options, config file, exit codes."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import yaml

from policies.registry import NAMES, make_policy
from protocol.errors import ApiError
from router.app import serve
from router.config import RouterConfig, WorkerSpec
from router.fleet import worker_id
from router.logs import log_to_stderr
from router.processes.supervisor import supervise

Command = Callable[..., None]

DEFAULTS = {field.name: field.default for field in fields(RouterConfig)}


class WorkerParam(click.ParamType[WorkerSpec]):
    """A worker as text (command line) or as a mapping (config file)."""

    name = "URL[,events=ENDPOINT][,replay=ENDPOINT][,topic=TOPIC]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> WorkerSpec:
        if isinstance(value, WorkerSpec):
            return value
        try:
            spec = WorkerSpec.of(value) if isinstance(value, dict) else WorkerSpec.parse(str(value))
            worker_id(spec.url)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)
        except ApiError as error:
            self.fail(error.message, param, ctx)
        return spec


class PolicyParam(click.ParamType[str]):
    name = "NAME[:KEY=VALUE...]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            make_policy(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


def read_config(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """The file's values become the options' defaults, so that they are checked alike and the command line wins."""
    if path is None:
        return
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.BadParameter(f"{path}: {error}", ctx, param) from error
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise click.BadParameter(
            f"{path}: the file must hold `name: value` lines, not {type(values).__name__}", ctx, param
        )
    unknown = [str(key) for key in values if key not in DEFAULTS]
    if unknown:
        allowed = ", ".join(DEFAULTS)
        raise click.BadParameter(f"{path}: unknown key {', '.join(map(repr, unknown))}; allowed: {allowed}", ctx, param)
    if not isinstance(values.get("worker", []), list):
        values["worker"] = [values["worker"]]
    ctx.default_map = values


def _option(name: str, kind: Any, text: str) -> Callable[[Command], Command]:
    flag = "--" + name.replace("_", "-")
    return click.option(
        flag, name, type=kind, default=DEFAULTS[name], show_default=DEFAULTS[name] is not None, help=text
    )


SECONDS = click.FloatRange(min=0.01)
COUNT = click.IntRange(min=1)


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    callback=read_config,
    is_eager=True,
    expose_value=False,
    help="YAML with the same names (underscores); the command line wins.",
)
@click.option("--worker", type=WorkerParam(), multiple=True, help="An engine to place requests on; repeat it.")
@_option("policy", PolicyParam(), f"How to place: {', '.join(NAMES)}.")
@_option("host", str, "Address to listen on.")
@_option("port", click.IntRange(0, 65535), "Port to listen on; 0: any free one.")
@_option("processes", COUNT, "That share the port, the load and the workers; more than one needs Linux.")
@_option("tokenizer", str, "Directory or hub name; default: what the workers name as their model's root.")
@_option("seed", int, "Of the draws that break ties.")
@_option("probe_interval_s", SECONDS, "Between health probes of a worker.")
@_option("probe_timeout_s", SECONDS, "A probe without an answer is a bad one; two in a row: down.")
@_option("max_in_flight", COUNT, "Requests at once; past it: 429. Of several processes, each takes its share.")
@_option("max_attempts", COUNT, "Workers that a request may be tried on before its first byte.")
@_option("max_body_mib", COUNT, "Largest request body.")
@_option("max_decisions", COUNT, "Placements that /decisions remembers.")
@_option("max_index_mib", COUNT, "What is known of the engines' caches; past it the stalest prefixes are forgotten.")
@_option("prior_prefill_tokens_per_s", SECONDS, "A worker's prefill rate until it is learned.")
@_option("assumed_cache_tokens", COUNT, "Of its last prompts, what a worker without events is taken to have cached.")
@_option("drain_timeout_s", click.FloatRange(min=0), "For requests in flight when the router stops.")
@_option("log_level", click.Choice(["debug", "info", "warning", "error"]), "To stderr.")
def router(**options: Any) -> None:
    """Place OpenAI-style requests on engines, where most of their prompt is already cached.

    Workers can also come and go while it runs: POST /workers, DELETE /workers/{id}.
    """
    config = RouterConfig(**options)
    log_to_stderr(config.log_level)
    try:
        if config.processes == 1:
            serve(config)
        else:
            supervise(config)
    except ChildProcessError as error:
        raise click.ClickException(str(error)) from error
    except ApiError as error:
        raise click.UsageError(error.message) from error
    except OSError as error:
        raise click.UsageError(f"cannot listen on {config.host}:{config.port}: {error.strerror or error}") from error
