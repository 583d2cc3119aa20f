"""`warmroute trace`: traces looked at, made, and turned from one format into another."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table

from replay.options import ABOVE_ZERO, COUNT, OutputPath
from replay.output import show
from replay.traces.generate import BLOCK_TOKENS, SMALL_WORKLOADS, small_workloads
from replay.traces.ideal import BLOCK_SIZES, granularity_table, ideal_hit_ratio
from replay.traces.mix import Mix, Span, generate_mix
from replay.traces.mooncake import MOONCAKE
from replay.traces.reader import read_trace
from replay.traces.text import ModelTokens
from replay.traces.trace import Trace
from replay.traces.writer import write_mooncake

CACHES = (1, 2, 4, 8, 16)

SOURCE = click.Path(exists=True, path_type=Path)

seed_option = click.option("--seed", type=int, default=0, show_default=True)


class SpanType(click.ParamType[Span]):
    """LEAST-MOST, both included, or one number for both."""

    name = "least-most"

    def __init__(self, least: int = 0) -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Span:
        low, _, high = value.partition("-")
        try:
            span = (int(low), int(high or low))
        except ValueError:
            self.fail(f"{value!r}: expected LEAST-MOST, such as 20-400", param, ctx)
        if not self._least <= span[0] <= span[1]:
            self.fail(f"{value!r}: expected at least {self._least}, and the larger number last", param, ctx)
        return span


SPAN, SPAN_FROM_1 = SpanType(), SpanType(least=1)

MIX_OPTIONS: dict[str, tuple[click.ParamType[Any], str]] = {
    "sessions": (COUNT, "Of people and agents together; subagents come on top."),
    "sessions_per_s": (ABOVE_ZERO, "How many begin in a second."),
    "tenants": (COUNT, "Each has a system prompt of its own."),
    "tenant_skew": (click.FloatRange(min=0), "The k-th tenant's share goes with 1/k to this power."),
    "agent_share": (click.FloatRange(0, 1), "Of the sessions."),
    "system_tokens": (SPAN_FROM_1, "A tenant's system prompt."),
    "turns": (SPAN_FROM_1, "Of a session."),
    "typed_tokens": (SPAN, "What a person adds in a turn."),
    "typing_s": (ABOVE_ZERO, "A person's mean pause before it."),
    "tool_tokens": (SPAN, "What an agent's tool adds in a turn."),
    "tool_s": (ABOVE_ZERO, "An agent's mean pause before it."),
    "subagents": (SPAN, "That an agent starts halfway."),
    "subagent_turns": (SPAN, "Of each of them."),
    "answer_tokens": (SPAN, "Of each answer."),
    "token_s": (click.FloatRange(min=0), "What an answer is taken to last, for each token."),
}


@click.group()
def trace() -> None:
    """Look at traces, make them, turn them into Mooncake's format. docs/replay.md lists the formats that are read."""


def reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """What read_trace has to be told where a file leaves it open. They reach `_read`."""
    for option in (
        click.option("--tokenizer", metavar="MODEL", help="Whose tokens texts become: a directory or hub name."),
        click.option("--output-tokens", type=COUNT, help="Of answers that nothing is said about."),
        click.option("--trace-block-tokens", type=COUNT, help="That a hash is of, where the trace does not say."),
    ):
        command = option(command)
    return command


@trace.command()
@click.argument("source", type=SOURCE)
@click.argument("dest", type=OutputPath())
@click.option("--block-tokens", type=COUNT, default=MOONCAKE.block_tokens, show_default=True, help="Of a hash in DEST.")
@reading_options
def convert(source: Path, dest: Path, block_tokens: int, **reading: Any) -> None:
    """Write SOURCE, of any format, as Mooncake's JSON lines to DEST; gzip if its name ends with .gz."""
    _write(_read(source, **reading), dest, block_tokens)


@trace.command()
@click.argument("source", metavar="TRACE", type=SOURCE)
@reading_options
def ideal(source: Path, **reading: Any) -> None:
    """The share of prompt tokens that endless caches would have: one for all, and several that take turns."""
    read = _read(source, **reading)
    table = Table(title=f"{len(read.requests):,} requests ({read.format})", box=box.SIMPLE_HEAD)
    with refused():
        ratios = [f"{ideal_hit_ratio(read, caches):.3f}" for caches in CACHES]
    for caches in CACHES:
        table.add_column("1 cache" if caches == 1 else f"{caches} in turn", justify="right")
    table.add_row(*ratios)
    show(table)


@trace.command()
@seed_option
def granularity(seed: int) -> None:
    """What the granularity of the cache costs: the small workloads' hit ratios by a tree of tokens and by blocks."""
    table = Table(title="Prompt tokens found in an endless cache", box=box.SIMPLE_HEAD)
    table.add_column("workload")
    for column in ("radix tree", *(f"blocks of {size}" for size in BLOCK_SIZES)):
        table.add_column(column, justify="right")
    for name, ratios in granularity_table(small_workloads(seed)).items():
        table.add_row(name, *(f"{ratio:.1%}" for ratio in ratios.values()))
    show(table)


@trace.group()
def generate() -> None:
    """Make a trace of Mooncake's JSON lines: the same for the same seed."""


def _small_command(name: str, help: str) -> click.Command:
    @click.command(name, help=help)
    @click.argument("dest", type=OutputPath())
    @seed_option
    def command(dest: Path, seed: int) -> None:
        _write(small_workloads(seed)[name], dest, BLOCK_TOKENS)

    return command


for each, description in SMALL_WORKLOADS.items():
    generate.add_command(_small_command(each, description))


def mix_options(command: Callable[..., None]) -> Callable[..., None]:
    """One for each field of Mix."""
    usual = Mix()
    for name, (type, help) in reversed(MIX_OPTIONS.items()):
        value = getattr(usual, name)
        default = "{}-{}".format(*value) if isinstance(value, tuple) else value
        option = click.option(f"--{name.replace('_', '-')}", type=type, default=default, show_default=True, help=help)
        command = option(command)
    return command


@generate.command()
@click.argument("dest", type=OutputPath())
@seed_option
@mix_options
def mix(dest: Path, seed: int, **values: Any) -> None:
    """Tenants with prompts of their own, people who chat, agents who call tools and start subagents."""
    _write(generate_mix(Mix(**values), seed), dest, BLOCK_TOKENS)


def _read(source: Path, *, trace_block_tokens: int | None, output_tokens: int | None, tokenizer: str | None) -> Trace:
    with refused():
        text = None if tokenizer is None else ModelTokens.load(tokenizer)
        return read_trace(source, text=text, block_tokens=trace_block_tokens, output_tokens=output_tokens)


def _write(made: Trace, dest: Path, block_tokens: int) -> None:
    with refused():
        write_mooncake(made, dest, block_tokens)
    hashes = f", hashes of {block_tokens}" if made.has_prefixes else ""
    click.echo(f"{dest}: {len(made.requests):,} requests, {made.input_tokens:,} prompt tokens{hashes}")


@contextmanager
def refused() -> Iterator[None]:
    """What a file makes impossible ends the command with exit code 2 and the reason."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise click.UsageError(str(error)) from error
