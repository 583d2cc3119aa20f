"""What the gateway costs, beside sglang-router and vllm-router on the same machine in the same minutes.

    python benchmarks/gateway.py [--only paced] [--runs 5] [--seconds 3] [--model smollm2-135m]
    python benchmarks/gateway.py --soak 60
    python benchmarks/gateway.py --throughput --model smollm2-135m

CPU time of the gateway process, per request and per streamed event, in front of two fake engines. vllm-router's
kv_aware asks the engines for a prompt's tokens; how often it did is printed. Every run measures
all gateways one after the other, so that a neighbour's noise falls on all; the ratios are medians over runs. The peers'
wheels go into a virtual environment of their own, build/peers.
"""

import asyncio
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import click
import orjson
import psutil
from rich.console import Console
from rich.table import Table

from replay.processes import Child, Processes, free_ports
from worker.model_store import resolve

HERE = Path(__file__).parent
PEERS = HERE.parent / "build" / "peers"
WHEELS = ("sglang-router==0.3.2", "vllm-router==0.1.17")
READY_S = 60.0
BASELINE = "sglang-router"


@dataclass(frozen=True, slots=True)
class Leg:
    """One kind of load. `events` 0: not streamed, and the figure is per request; else per event."""

    name: str
    connections: int
    prompt_kb: float = 2.0
    events: int = 0
    gap_ms: float = 0.0


LEGS = (
    Leg("request 2 KB", 8),
    Leg("request 32 KB", 8, 32.0),
    Leg("request 128 KB", 8, 128.0),
    Leg("event paced 10 ms", 64, events=50, gap_ms=10.0),
    Leg("event unpaced", 8, events=50),
)
IDLE = Leg("TTFT idle", 1, events=1)
BUSY = Leg("TTFT half load", 64, events=10)


@dataclass(frozen=True, slots=True)
class Gateway:
    """A process that listens. `child` None: the first engine itself, to compare times with."""

    name: str
    port: int
    child: Child | None

    def cpu_s(self) -> float:
        assert self.child is not None
        process = psutil.Process(self.child.process.pid)
        return sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)))

    def rss_mib(self) -> float:
        assert self.child is not None
        rss: int = psutil.Process(self.child.process.pid).memory_info().rss
        return rss / (1 << 20)


class Bench:
    """Two engines and the gateways in front of them."""

    def __init__(self, processes: Processes, session: aiohttp.ClientSession) -> None:
        self._processes, self._session = processes, session
        self._engines = free_ports(2)

    async def start_engines(self, root: str) -> None:
        for port in self._engines:
            command = (sys.executable, str(HERE / "fake_engine.py"), "--port", str(port), "--root", root)
            await self._ready(await self._processes.start(f"engine-{port}", *command), port, "/health")

    async def _ready(self, child: Child, port: int, path: str) -> None:
        url = f"http://127.0.0.1:{port}{path}"
        await self._processes.guard(self._processes.wait_ready(child, self._session, url, READY_S))

    @property
    def engine(self) -> Gateway:
        return Gateway("engine", self._engines[0], None)

    async def warmroute(self, name: str, *options: str) -> Gateway:
        (port,) = free_ports(1)
        workers = [f"--worker={url}" for url in self.urls]
        command = (sys.executable, "-m", "warmroute", "router", "--port", str(port), *workers, *options)
        child = await self._processes.start(name.replace(" ", "-"), *command)
        await self._ready(child, port, "/ready")
        return Gateway(name, port, child)

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{engine}" for engine in self._engines]

    async def peer(self, name: str, *arguments: str) -> Gateway:
        """`name`: the program, and what tells it from others of the same."""
        port, metrics_port = free_ports(2)
        common = ("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics_port))
        program = str(PEERS / "bin" / name.split()[0])
        command = (program, *arguments, *common, "--log-level", "error", "--worker-urls", *self.urls)
        child = await self._processes.start(name.replace(" ", "-"), *command)
        await self._ready(child, port, "/v1/models")
        return Gateway(name, port, child)

    async def kv_aware(self) -> Gateway:
        """vllm-router as it places by tokens. Nobody publishes at the endpoints: what is measured is what it does for
        every request, to ask for its tokens and to look them up."""
        options = ["--policy", "kv_aware", "--kv-event-model", "m"]
        for url, port in zip(self.urls, free_ports(2), strict=True):
            options += ["--kv-event-source", f"{url}=tcp://127.0.0.1:{port}"]
        return await self.peer("vllm-router kv_aware", *options)

    async def load(self, gateway: Gateway, leg: Leg, seconds: float, rate: float = 0.0) -> dict[str, Any]:
        """Set the engines' pace and put the load on: what came back, `cpu_us` per request or event, and how many
        prompts the engines `rendered` for it."""
        await self._pace(leg)
        shape = {"connections": leg.connections, "prompt-kb": leg.prompt_kb, "events": leg.events}
        options = {"port": gateway.port, "seconds": seconds, "rate": rate, **shape}
        arguments = [f"--{name}={value}" for name, value in options.items()]
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(HERE / "http_load.py"), *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        await process.stdout.readline()
        before_s = gateway.cpu_s() if gateway.child else 0.0
        await self._pace(leg)
        output, _ = await process.communicate(b"\n")
        report: dict[str, Any] = orjson.loads(output)
        if report["errors"] or report["wrong_bytes"]:
            raise click.ClickException(f"{gateway.name}, {leg.name}: {report}")
        if gateway.child:
            report["cpu_us"] = (gateway.cpu_s() - before_s) / (report["events"] or report["requests"]) * 1e6
        report["rendered"] = await self._pace(leg)
        return report

    async def _pace(self, leg: Leg) -> int:
        """Returns the prompts that were rendered since the last call."""
        rendered = 0
        for url in self.urls:
            pace = {"events": leg.events, "gap_ms": leg.gap_ms}
            async with self._session.post(f"{url}/pace", json=pace) as answer:
                rendered += (await answer.json())["rendered"]
        return rendered


@asynccontextmanager
async def bench(root: str) -> AsyncIterator[Bench]:
    async with Processes() as processes, aiohttp.ClientSession() as session:
        running = Bench(processes, session)
        await running.start_engines(root)
        yield running


def install_peers() -> None:
    if not (PEERS / "bin" / "vllm-router").exists():
        click.echo(f"installing {', '.join(WHEELS)} into {PEERS}", err=True)
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        subprocess.run([PEERS / "bin" / "pip", "install", "--quiet", *WHEELS], check=True)


async def start_gateways(running: Bench, model: str | None) -> list[Gateway]:
    limits = ("--max-concurrent-requests", "10000")
    gateways = [
        await running.peer("sglang-router", "launch", "--policy", "cache_aware", *limits),
        await running.peer("vllm-router", "--policy", "cache_aware"),
        await running.warmroute("warmroute, approximate", "--tokenizer", "/nowhere"),
    ]
    if model is not None:
        gateways += [await running.warmroute("warmroute, exact"), await running.kv_aware()]
    return gateways


async def measure(running: Bench, gateways: list[Gateway], legs: list[Leg], runs: int, seconds: float) -> None:
    for gateway in gateways:
        await running.load(gateway, LEGS[0], 1.0)  # warm up: allocators, caches, connections
    table = Table("CPU time, us", *(gateway.name for gateway in gateways))
    for leg in legs:
        figures: dict[str, list[float]] = defaultdict(list)
        rendered: dict[str, float] = {}
        for _ in range(runs):
            for gateway in gateways:
                report = await running.load(gateway, leg, seconds)
                figures[gateway.name].append(report["cpu_us"])
                rendered[gateway.name] = report["rendered"] / report["requests"]
        table.add_row(leg.name, *(_figure(figures[gateway.name], figures[BASELINE]) for gateway in gateways))
        asked = ", ".join(f"{name} {times:.1f}" for name, times in rendered.items() if times)
        click.echo(f"{leg.name}: prompts rendered by the engines, per request: {asked or 'none'}", err=True)
    Console(width=160).print(table)


def _figure(own: list[float], baseline: list[float]) -> str:
    ratio = median(mine / theirs for mine, theirs in zip(own, baseline, strict=True))
    return f"{median(own):7.1f}  x{ratio:.2f}"


async def measure_ttft(running: Bench, gateways: list[Gateway], runs: int, seconds: float) -> None:
    """What a gateway adds to the time to the first token, one request at a time and at half of what it can carry."""
    table = Table("TTFT added, ms", *(gateway.name for gateway in gateways))
    for leg in (IDLE, BUSY):
        cells = []
        for gateway in gateways:
            rate = 0.0
            if leg is BUSY:
                rate = (await running.load(gateway, leg, seconds))["requests"] / seconds / 2
            added = [await _added_ttft(running, gateway, leg, seconds, rate) for _ in range(runs)]
            p50_ms, p99_ms = (median(column) for column in zip(*added, strict=True))
            cells.append(f"p50 {p50_ms:.2f}  p99 {p99_ms:.2f}" + (f"  at {rate:.0f}/s" if rate else ""))
        table.add_row(leg.name, *cells)
    Console(width=160).print(table)


async def _added_ttft(running: Bench, gateway: Gateway, leg: Leg, seconds: float, rate: float) -> tuple[float, float]:
    direct = await running.load(running.engine, leg, seconds, rate)
    through = await running.load(gateway, leg, seconds, rate)
    return (
        through["ttft_p50_ms"] - direct["ttft_p50_ms"],
        through["ttft_p99_ms"] - direct["ttft_p99_ms"],
    )


async def throughput(running: Bench, runs: int, seconds: float) -> None:
    """Requests a second that one router process answers, and two; client and engines have the rest of the machine."""
    gateways = [await running.warmroute(f"{n} processes", "--processes", str(n)) for n in (1, 2)]
    leg = replace(LEGS[1], connections=32)
    table = Table(f"{leg.name}, {leg.connections} connections", "requests/s", "CPU time, us")
    reports = [[await running.load(gateway, leg, seconds) for gateway in gateways] for _ in range(runs)]
    for gateway, own in zip(gateways, zip(*reports, strict=True), strict=True):
        rate, cpu_us = (median(report[key] for report in own) for key in ("requests", "cpu_us"))
        table.add_row(gateway.name, f"{rate / seconds:.0f}", f"{cpu_us:.0f}")
    Console().print(table)


async def soak(running: Bench, seconds: float) -> None:
    """1,000 streams of 50 events at a time; every byte checked, memory and the loop's lag watched."""
    gateway = await running.warmroute("warmroute", "--tokenizer", "/nowhere")
    leg = Leg("soak", 1000, events=50, gap_ms=100.0)
    starts_per_s = leg.connections / (leg.events * leg.gap_ms / 1e3)  # spread: not all events at the same moment
    loading = asyncio.create_task(running.load(gateway, leg, seconds, starts_per_s))
    rss_mib: list[float] = []
    lags_ms: list[float] = []
    async with aiohttp.ClientSession() as session:
        while not loading.done():
            start_s = asyncio.get_running_loop().time()
            async with session.get(f"http://127.0.0.1:{gateway.port}/health"):
                lags_ms.append((asyncio.get_running_loop().time() - start_s) * 1e3)
            rss_mib.append(gateway.rss_mib())
            await asyncio.sleep(0.02)
    report = await loading
    lags_ms.sort()
    third = len(rss_mib) // 3
    click.echo(
        f"{report['requests']} streams, {report['events']} events, {report['errors']} errors, "
        f"{report['wrong_bytes']} with a wrong byte; {report['cpu_us']:.1f} us an event; /health answered in "
        f"p50 {lags_ms[len(lags_ms) // 2]:.1f} ms, p99 {lags_ms[int(len(lags_ms) * 0.99)]:.1f} ms; "
        f"RSS {max(rss_mib[third : 2 * third]):.0f} MiB, then {max(rss_mib[2 * third :]):.0f}"
    )


async def run(only: str, runs: int, seconds: float, model: str | None) -> None:
    async with bench(root_of(model)) as running:
        gateways = await start_gateways(running, model)
        if legs := [leg for leg in LEGS if only in leg.name]:
            await measure(running, gateways, legs, runs, seconds)
        if not only or only in "TTFT":
            await measure_ttft(running, gateways, runs, seconds)


async def run_alone(measurement: Callable[[Bench], Awaitable[None]], model: str | None) -> None:
    async with bench(root_of(model)) as running:
        await measurement(running)


def root_of(model: str | None) -> str:
    return str(resolve(model)) if model else "m"


@click.command
@click.option("--only", default="", help="Kinds of load whose name has this text; TTFT is one too.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=1.0), default=3.0, show_default=True, help="Of each measurement.")
@click.option("--model", help="Route exactly too, with this model's tokenizer: an alias or a directory.")
@click.option("--soak", "soak_s", type=float, default=0.0, help="Instead: so many seconds of 1,000 streams at a time.")
@click.option("--throughput", "processes", is_flag=True, help="Instead: what one and two router processes serve.")
def main(only: str, runs: int, seconds: float, model: str | None, soak_s: float, processes: bool) -> None:
    """Measure, and print a table of CPU times and of their ratios to sglang-router's."""
    if soak_s:
        asyncio.run(run_alone(partial(soak, seconds=soak_s), model))
    elif processes:
        asyncio.run(run_alone(partial(throughput, runs=runs, seconds=seconds), model))
    else:
        install_peers()
        asyncio.run(run(only, runs, seconds, model))


if __name__ == "__main__":
    main()
