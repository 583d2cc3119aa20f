"""The front door: `warmroute worker | router | replay | trace | demo`. It parses nothing; each room brings its own."""

import importlib
from typing import Any

import click

COMMANDS = {
    "worker": "worker.cli:worker",
    "router": "router.cli:router",
    "replay": "replay.cli:replay",
    "trace": "replay.traces.cli:trace",
    "demo": "replay.demo.cli:demo",
}

HELP = {
    "worker": "Serve a model: an engine with a prefix cache that publishes its KV events.",
    "router": "The gateway: place OpenAI-style requests where their prompt is cached.",
    "replay": "Measure placement policies on a trace of real traffic, in a simulated fleet.",
    "trace": "Read, convert and generate traces, and what they have to share.",
    "demo": "Two workers and the router on this machine: round robin against cache-aware placement.",
}


class Rooms(click.Group):
    """Mounts a room's command when it is asked for, so that `router` runs where torch is not installed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:  # of a room as it is mounted, or of what it imports only when needed
            raise click.UsageError(
                f"the package {error.name!r} is not installed: pip install 'warmroute[worker]'", ctx
            ) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, HELP[name]) for name in COMMANDS])


@click.group(cls=Rooms)
@click.version_option(package_name="warmroute")
def main() -> None:
    """A cache-aware gateway for fleets of LLM engines."""


if __name__ == "__main__":
    main()
