"""`warmroute replay --live` and `--calibrate` on a real engine behind a real router, each a process."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from replay.client import open_session
from replay.processes import Processes, free_ports
from worker.timing import Profile

READY_S = 120.0
BLOCK_TOKENS = 512
ROWS = [
    {"timestamp": n * 100, "input_length": BLOCK_TOKENS + 100, "output_length": 4, "hash_ids": [n % 2, 10 + n]}
    for n in range(12)
]


@pytest.fixture
async def urls() -> AsyncIterator[tuple[str, str]]:
    """Of a worker, and of a router before it."""
    worker_port, router_port = free_ports(2)
    worker, router = f"http://127.0.0.1:{worker_port}", f"http://127.0.0.1:{router_port}"
    model = ["--model", "tiny-random", "--threads", "1", "--blocks", "1024"]
    async with Processes() as processes, open_session() as session:
        await processes.start("worker", *command("worker", "--port", str(worker_port), *model))
        child = await processes.start("router", *command("router", "--port", str(router_port), "--worker", worker))
        await processes.guard(processes.wait_ready(child, session, f"{router}/ready", READY_S))
        yield worker, router


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "warmroute", *arguments]


async def replay(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(*command("replay", *arguments), stderr=asyncio.subprocess.PIPE)
    _, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()


async def test_a_trace_finds_its_prefixes_and_a_worker_its_profile(urls: tuple[str, str], tmp_path: Path) -> None:
    worker, router = urls
    trace, result, profile = (tmp_path / name for name in ("trace.jsonl", "result.json", "profile.json"))
    trace.write_bytes(b"\n".join(map(orjson.dumps, ROWS)))

    chats = ["--live", router, "--api", "chat", "--concurrency", "1", "--worker-url", worker]
    await replay(str(trace), *chats, "--json", str(result))
    live = orjson.loads(result.read_bytes())["live"]
    assert (live["requests"], live["rejected"]) == (12, 0)
    assert live["tokens"]["input"] == pytest.approx(12 * (BLOCK_TOKENS + 100), rel=0.05)
    assert live["tokens"]["output"] == 12 * 4
    assert live["hit_ratio"] > 0.5
    assert live["predicted_hit_ratio"] == pytest.approx(live["hit_ratio"], abs=0.01)
    assert live["workers"] == {worker: live["tokens"]}

    tokens = ["--vocab-size", "256", "--longest-prompt", "128", "--sequences", "2"]
    await replay("--calibrate", worker, "--output", str(profile), *tokens)
    assert Profile.read(profile).prefill_ms(100) > 0
