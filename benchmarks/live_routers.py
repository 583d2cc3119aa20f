"""A trace through simulated workers, behind our router and behind sglang-router and vllm-router, one after the other.

    python benchmarks/live_routers.py TRACE --peers VENV/bin [--only warmroute] [--speedup 3] [--window-s 600]

VENV has the packages sglang-router and vllm-router. Every router gets fresh workers and the same prompts, as chats, for
sglang-router takes no token ids. The simulator's prediction for our router stands beside.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import click
import orjson
from rich.console import Console
from rich.table import Table

from replay.processes import Processes, free_ports

MODEL = "tiny-random"
BLOCKS, BLOCK_SIZE = 16_384, 64
READY_S = 300.0
WORKER = f"""--engine sim --model {MODEL} --blocks {BLOCKS} --block-size {BLOCK_SIZE} --max-batched-tokens 8192
 --max-num-seqs 256 --max-model-len 262144""".split()


@dataclass(frozen=True, slots=True)
class Fleet:
    """Ports of each worker: HTTP, KV events, replay."""

    http: list[int]
    events: list[int] = field(default_factory=list)
    replay: list[int] = field(default_factory=list)

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.http]


def ours(fleet: Fleet, port: int, peers: Path) -> list[str]:
    workers = [option for url in fleet.urls for option in ("--worker", url)]
    return [sys.executable, "-m", "warmroute", "router", "--port", str(port), *workers]


def ours_twice(fleet: Fleet, port: int, peers: Path) -> list[str]:
    return [*ours(fleet, port, peers), "--processes", "2"]


def sglang(fleet: Fleet, port: int, peers: Path) -> list[str]:
    options = f"launch --host 127.0.0.1 --port {port} --policy cache_aware --log-level error".split()
    options += ["--prometheus-port", str(free_ports(1)[0])]
    return [str(peers / "sglang-router"), *options, "--worker-urls", *fleet.urls]


def vllm(fleet: Fleet, port: int, peers: Path) -> list[str]:
    options = f"--host 127.0.0.1 --port {port} --policy kv_aware --log-level error".split()
    options += ["--prometheus-port", str(free_ports(1)[0])]
    options += ["--kv-event-model", MODEL, "--kv-event-block-size", str(BLOCK_SIZE)]
    for url, events, replay in zip(fleet.urls, fleet.events, fleet.replay, strict=True):
        options += ["--kv-event-source", f"{url}=tcp://127.0.0.1:{events}"]
        options += ["--kv-event-replay-source", f"{url}=tcp://127.0.0.1:{replay}"]
    return [str(peers / "vllm-router"), *options, "--worker-urls", *fleet.urls]


ROUTERS: dict[str, Callable[[Fleet, int, Path], list[str]]] = {
    "warmroute": ours,
    "warmroute, 2 processes": ours_twice,
    "sglang-router cache_aware": sglang,
    "vllm-router kv_aware": vllm,
}


@click.command
@click.argument("trace", type=click.Path(exists=True, path_type=Path))
@click.option("--peers", type=click.Path(exists=True, file_okay=False, path_type=Path), required=True)
@click.option("--only", default="", help="Routers whose name has this text.")
@click.option("--workers", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--speedup", type=float, default=3.0, show_default=True)
@click.option("--window-s", type=float, default=600.0, show_default=True, help="Of the trace.")
def main(trace: Path, peers: Path, only: str, workers: int, speedup: float, window_s: float) -> None:
    """Prints hit ratio, times and balance of each router."""
    load = ["--speedup", str(speedup), "--window-s", str(window_s)]
    simulated = replay(str(trace), *load, "--policy", "default", "--workers", str(workers))["policies"]
    table = Table(
        "router", "hit %", "TTFT mean / p50 / p99 ms", "ITL ms", "end to end ms", "max share", "failed", "lag p99 ms"
    )
    for name, command in ((name, command) for name, command in ROUTERS.items() if only in name):
        row = cells(asyncio.run(measure(command, trace, load, workers, peers)))
        click.echo(f"{name}: {', '.join(row)}", err=True)
        table.add_row(name, *row)
    for result in simulated.values():
        table.add_row("warmroute, simulated", *cells(result))
    Console(width=140).print(table)


async def measure(
    command: Callable[[Fleet, int, Path], list[str]], trace: Path, load: list[str], workers: int, peers: Path
) -> dict[str, Any]:
    ports = free_ports(3 * workers + 1)
    fleet, port = Fleet(ports[:workers], ports[workers:-1:2], ports[workers + 1 : -1 : 2]), ports[-1]
    async with Processes() as processes, aiohttp.ClientSession() as session:
        children = []
        for number, (http, events, again) in enumerate(zip(fleet.http, fleet.events, fleet.replay, strict=True)):
            options = ["--port", str(http), "--kv-events", f"tcp://*:{events}", "--kv-replay", f"tcp://*:{again}"]
            command_line = [sys.executable, "-m", "warmroute", "worker", *WORKER, *options]
            children.append(await processes.start(f"worker-{number}", *command_line))
        for child, url in zip(children, fleet.urls, strict=True):
            await processes.wait_ready(child, session, f"{url}/health", READY_S)
        router = await processes.start("router", *command(fleet, port, peers))
        await processes.wait_ready(router, session, f"http://127.0.0.1:{port}/v1/models", READY_S, has_models)
        counted = [option for url in fleet.urls for option in ("--worker-url", url)]
        live = ["--live", f"http://127.0.0.1:{port}", "--api", "chat", "--model", MODEL, "--seed", "0", *counted]
        result = await processes.guard(asyncio.to_thread(replay, str(trace), *load, *live))
        measured: dict[str, Any] = result["live"]
        return measured


def has_models(body: bytes) -> bool:
    return bool(orjson.loads(body)["data"])


def replay(*arguments: str) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, "-m", "warmroute", "replay", *arguments, "--json", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        result: dict[str, Any] = orjson.loads(path.read_bytes())
        return result


def cells(result: dict[str, Any]) -> list[str]:
    ttft, share = result["ttft_ms"], result["max_share"]
    failed, lag = result.get("rejected", 0), result.get("lag_ms")
    return [
        f"{result['hit_ratio']:.1%}",
        f"{ttft['mean']:.0f} / {ttft['p50']:.0f} / {ttft['p99']:.0f}",
        f"{result['itl_ms']['mean']:.1f}",
        f"{result['e2e_ms']['mean']:.0f}",
        "" if share is None else f"{share:.3f}",
        str(failed),
        "" if lag is None else f"{lag['p99']:.0f}",
    ]


if __name__ == "__main__":
    main()
