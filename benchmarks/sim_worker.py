"""A simulated worker: CPU time of its process for a prompt, and for each token that it streams. Linux only.

    python benchmarks/sim_worker.py [--model smollm2-135m] [--prompt-tokens 12000] [--streams 8]

Every prompt is new. Wake-ups are most of what a token costs when few sequences run, and vary with the machine.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import aiohttp
import click

COUNT = click.IntRange(min=1)
TOKENS = range(100, 10_000)  # in the vocabulary of any but the smallest tokenizers
WORDS = ("the", "boat", "leaves", "harbour", "first", "quick", "river")
STREAMED_TOKENS = 500
STREAMED_PROMPT = 100


@click.command
@click.option("--model", default="smollm2-135m", show_default=True)
@click.option("--prompt-tokens", type=COUNT, default=12_000, show_default=True)
@click.option("--requests", type=COUNT, default=40, show_default=True)
@click.option("--streams", type=COUNT, default=8, show_default=True, help="Sequences that decode together.")
def main(model: str, prompt_tokens: int, requests: int, streams: int) -> None:
    """Print one row for each kind of load."""
    with served(model) as (url, pid):
        asyncio.run(measure(url, pid, prompt_tokens, requests, streams))


async def measure(url: str, pid: int, prompt_tokens: int, requests: int, streams: int) -> None:
    random = Random(0)

    def ids() -> dict[str, object]:
        return {"prompt": random.choices(TOKENS, k=prompt_tokens), "max_tokens": 1}

    def text() -> dict[str, object]:
        return {"prompt": " ".join(random.choices(WORDS, k=prompt_tokens)), "max_tokens": 1}

    def stream() -> dict[str, object]:
        return {"prompt": random.choices(TOKENS, k=STREAMED_PROMPT), "max_tokens": STREAMED_TOKENS, "stream": True}

    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as client:

        async def post(body: dict[str, object]) -> None:
            async with client.post("/v1/completions", json=body) as response:
                await response.read()
                assert response.status == 200, response

        async def one_by_one(make: Callable[[], dict[str, object]]) -> None:
            for body in [make() for _ in range(requests)]:
                await post(body)

        async def together() -> None:
            await asyncio.gather(*(post(stream()) for _ in range(streams)))

        await post(stream())  # what the first request alone pays for
        click.echo(f"prompt of {prompt_tokens} ids:    {await cpu_us(pid, one_by_one(ids)) / requests:8.0f} us")
        click.echo(f"prompt of {prompt_tokens} words:  {await cpu_us(pid, one_by_one(text)) / requests:8.0f} us")
        tokens = streams * STREAMED_TOKENS
        click.echo(f"token, {streams} streams:        {await cpu_us(pid, together()) / tokens:8.0f} us")


async def cpu_us(pid: int, work: Awaitable[None]) -> float:
    """CPU time that the process used while the work was done."""
    before_us = used_us(pid)
    await work
    return used_us(pid) - before_us


def used_us(pid: int) -> float:
    """User and system time of all threads, in steps of 10 ms (proc(5), stat)."""
    utime, stime = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(utime) + int(stime)) / os.sysconf("SC_CLK_TCK") * 1e6


@contextmanager
def served(model: str) -> Iterator[tuple[str, int]]:
    """URL and process id of a worker whose passes take 5 ms."""
    command = [sys.executable, "warmroute.py", "worker", "--engine", "sim", "--model", model, "--port", "0"]
    command += ["--timing", "linear:1e9,5", "--block-size", "64", "--max-model-len", "131072"]
    command += ["--max-batched-tokens", "8192", "--max-num-seqs", "256"]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().partition("ready at ")[2].partition(";")[0], process.pid
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
