"""What the options of `warmroute replay` may be, and which of them go together."""

from collections.abc import Collection
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from policies.registry import DEFAULT, NAMES, make_policy
from policies.views import Policy
from replay.simulator.options import Restart
from replay.traces.tokens import MAX_SEED


class Mode(Enum):
    """What a replay may be; the values name them for people."""

    SIMULATION = "a simulation"
    LIVE = "--live"
    CALIBRATION = "--calibrate"


class ModeOption(click.Option):
    """An option that goes with some modes only."""

    def __init__(self, *args: Any, modes: Collection[Mode], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.modes = modes


class ModeCommand(click.Command):
    """Its help has a section for each combination of modes."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                title = f"Options for {_names(param.modes)}" if isinstance(param, ModeOption) else "Options"
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def options_of(ctx: click.Context, mode: Mode) -> dict[str, Any]:
    """The values of the options that go with `mode`. Raises UsageError if others were given."""
    values = {}
    for option in ctx.command.params:
        if not isinstance(option, ModeOption):
            continue
        assert option.name is not None, "click names every parameter"
        if mode in option.modes:
            values[option.name] = ctx.params[option.name]
        elif ctx.get_parameter_source(option.name) is click.core.ParameterSource.COMMANDLINE:
            flag, allowed = option.opts[-1], _names(option.modes)
            raise click.UsageError(f"{flag} does not go with {mode.value}: it is for {allowed}", ctx)
    return values


def _names(modes: Collection[Mode]) -> str:
    return " and ".join(mode.value for mode in modes)


def vocabulary_below(ctx: click.Context, param: click.Parameter, size: int) -> range:
    """The ids of a vocabulary without its first part, where special tokens are: a callback for click."""
    return range(size // 32, size)


COUNT = click.IntRange(min=1)
SHARE = click.FloatRange(0, 1, max_open=True)
SECONDS = click.FloatRange(min=0)
SEED = click.IntRange(0, MAX_SEED)
ABOVE_ZERO = click.FloatRange(0, min_open=True)


class OutputPath(click.Path):
    """A file to write at the end, in a folder that is there: nobody should wait for a result that has no place."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path: Any = super().convert(value, param, ctx)
        if not path.parent.is_dir():
            self.fail(f"{value}: there is no folder {path.parent}", param, ctx)
        return path


def base_url(text: str) -> str:
    """`http://HOST:PORT` with neither /v1 nor a slash at its end. Raises ValueError for anything but an HTTP URL."""
    url = urlsplit(text)
    url.port  # noqa: B018 - raises for what is no port
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
        raise ValueError(f"{text!r} is no URL of a server: expected http://HOST:PORT")
    return text.rstrip("/").removesuffix("/v1")


class UrlType(click.ParamType[str]):
    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return base_url(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


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
