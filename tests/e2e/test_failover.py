"""Real engines and a real router as processes, killed in the middle of things."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import orjson
import pytest

from protocol.sse import EventReader
from replay.processes import Child, Processes, free_ports

MODEL = "tiny-random"
READY_S = 120.0
WAIT_S = 60.0


class Stack:
    """Two workers and a router, each a process that can be killed and started again."""

    def __init__(self, processes: Processes, session: aiohttp.ClientSession) -> None:
        self.processes, self.session = processes, session
        self.ports = free_ports(3)
        self.router = f"http://127.0.0.1:{self.ports[2]}"
        self.workers: dict[str, Child] = {}

    async def start_worker(self, port: int) -> None:
        command = ["worker", "--model", MODEL, "--port", str(port), "--threads", "1", "--blocks", "1024"]
        child = await self.processes.start(f"worker-{port}", sys.executable, "-m", "warmroute", *command)
        await self.processes.wait_ready(child, self.session, f"http://127.0.0.1:{port}/health", READY_S)
        self.workers[f"127.0.0.1:{port}"] = child

    async def start(self) -> None:
        await asyncio.gather(*(self.start_worker(port) for port in self.ports[:2]))
        options = [f"--worker=http://{worker}" for worker in self.workers]
        command = ["router", "--port", str(self.ports[2]), "--policy", "round_robin", "--probe-interval-s", "0.2"]
        router = await self.processes.start("router", sys.executable, "-m", "warmroute", *command, *options)
        await self.processes.wait_ready(router, self.session, f"{self.router}/ready", READY_S)
        await self.until(lambda worker: worker["health"] == "up" and worker["slots"][0]["cache_state"] == "live")

    async def kill(self, worker: str) -> None:
        child = self.workers.pop(worker)
        os.kill(child.process.pid, signal.SIGKILL)
        await child.process.wait()

    async def restart(self, worker: str) -> None:
        await self.start_worker(int(worker.rpartition(":")[2]))

    async def reports(self) -> dict[str, Any]:
        async with self.session.get(f"{self.router}/workers") as response:
            return {worker["id"]: worker for worker in (await response.json())["workers"]}

    async def until(self, condition: Callable[[Any], object], *workers: str) -> None:
        """Wait until the router's report of each of `workers` (default: all) meets the condition."""
        async with asyncio.timeout(WAIT_S):
            while True:
                reports = await self.reports()
                if all(condition(reports[worker]) for worker in workers or reports):
                    return
                await asyncio.sleep(0.05)

    async def ask(self, text: str, **fields: Any) -> aiohttp.ClientResponse:
        messages = [{"role": "system", "content": "You are a test. " * 10}, {"role": "user", "content": text}]
        body = {"model": MODEL, "messages": messages, "temperature": 0, "ignore_eos": True, **fields}
        return await self.session.post(f"{self.router}/v1/chat/completions", data=orjson.dumps(body))

    async def status_and_worker(self, text: str, **fields: Any) -> tuple[int, str]:
        async with await self.ask(text, **fields) as response:
            await response.read()
            return response.status, response.headers["x-warmroute-worker"]


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with Processes() as processes, aiohttp.ClientSession() as session:
        stack = Stack(processes, session)
        await stack.start()
        yield stack


def is_down(worker: Any) -> bool:
    return bool(worker["health"] == "down" and worker["slots"][0]["blocks"] == 0)


def is_idle(worker: Any) -> bool:
    slot = worker["slots"][0]
    return (slot["active_requests"], slot["queued_prefill_tokens"], slot["decode_tokens"]) == (0, 0, 0)


async def test_workers_killed_while_streaming_and_while_idle(stack: Stack) -> None:
    first, second = list(stack.workers)
    assert {(await stack.status_and_worker(f"warm {i}", max_tokens=2))[1] for i in range(2)} == {first, second}
    await stack.until(lambda worker: worker["slots"][0]["blocks"] > 0)

    async with await stack.ask("stream", stream=True, max_tokens=1500) as streaming:
        victim = streaming.headers["x-warmroute-worker"]
        survivor = second if victim == first else first
        reader = EventReader()
        assert reader.feed(await streaming.content.readany())
        waiting = [asyncio.create_task(stack.status_and_worker(f"{i}", max_tokens=200)) for i in range(6)]
        await stack.until(lambda worker: worker["slots"][0]["active_requests"] >= 4, victim)
        await stack.kill(victim)
        events = reader.feed(await streaming.content.read())
    assert "worker failed while it answered" in orjson.loads(events[-1])["error"]["message"]
    assert {status for status, _ in await asyncio.gather(*waiting)} == {200}
    await stack.until(is_down, victim)
    assert (await stack.status_and_worker("who is left?", max_tokens=2)) == (200, survivor)

    await stack.kill(survivor)
    await stack.until(is_down)
    async with await stack.ask("anybody?", max_tokens=2) as response:
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert "no worker can take this request now" in (await response.json())["error"]["message"]

    await asyncio.gather(stack.restart(first), stack.restart(second))
    await stack.until(lambda worker: worker["health"] == "up" and worker["slots"][0]["cache_state"] == "live")
    assert {(await stack.status_and_worker(f"back {i}", max_tokens=2)) for i in range(2)} == {
        (200, first),
        (200, second),
    }
    await stack.until(is_idle)
    await stack.until(lambda worker: worker["slots"][0]["blocks"] > 0)
