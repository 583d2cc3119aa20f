"""A real vLLM as a worker: what the router predicts is what the engine reports.

Runs where the environment names one: VLLM=/path/to/vllm (0.32 or later; the CPU build will do).
"""

import asyncio
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import pytest

from router.app import RunningRouter, running
from router.config import RouterConfig, WorkerSpec
from worker.model_store import resolve

VLLM = os.environ.get("VLLM")

pytestmark = [pytest.mark.engines, pytest.mark.skipif(VLLM is None, reason="no real engine: set VLLM=/path/to/vllm")]

BLOCKS = 40
SIZE = 32
START_S = 240
EVENTS = (
    '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0",'
    ' "topic": "kv-events"}'
)
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "VLLM_SERVER_DEV_MODE": "1",
}


@asynccontextmanager
async def vllm(model: Path, port: int, log: Path) -> AsyncIterator[str]:
    """A vLLM process of its own group, killed with all of it, as a crash would be."""
    command = (
        f"{VLLM} serve {model} --served-model-name smollm2 --host 127.0.0.1 --port {port} --dtype bfloat16 "
        f"--max-model-len 1024 --max-num-seqs 16 --block-size {SIZE} --enable-prefix-caching --enforce-eager "
        f"--num-gpu-blocks-override {BLOCKS} --enable-prompt-tokens-details --kv-events-config"
    ).split()
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, EVENTS, stdout=output, stderr=output, env={**os.environ, **ENVIRONMENT}, start_new_session=True
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class Client:
    def __init__(self, router: RunningRouter, session: aiohttp.ClientSession, worker: str) -> None:
        self.router, self.session, self.worker = router, session, worker

    async def ask(self, body: dict[str, Any]) -> tuple[int, int]:
        """(predicted, reported) cached tokens."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        body = {"model": "smollm2", "temperature": 0, "max_tokens": 4, **body}
        async with self.session.post(self.router.url + path, json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            predicted = int(response.headers["x-warmroute-cached-tokens"])
        print(predicted, answer["usage"], file=sys.stderr)
        return predicted, answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    async def settled(self, generation: int = 0) -> None:
        """The worker is up and every event that it sent has been applied."""
        last = -1
        async with asyncio.timeout(START_S):
            while True:
                slots = self.router.core.worker(self.worker, monotonic()).slots
                blocks = slots[0].blocks if slots and slots[0].cache_state == "live" else -1
                if blocks == last >= 0 and slots[0].generation >= generation:
                    return
                last = blocks
                await asyncio.sleep(0.25)


def chat(user: str, salt: str | None = None) -> dict[str, Any]:
    system = "You answer for a river ferry company. Heron leaves at seven, Kestrel at nine, Osprey at noon. " * 5
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"messages": messages} | ({"cache_salt": salt} if salt else {})


def cold_prompt(seed: int, tokens: int = 500) -> dict[str, Any]:
    return {"prompt": random.Random(seed).choices(range(1000, 40_000), k=tokens)}


async def test_prediction_is_usage_also_after_eviction_and_restart(tmp_path: Path) -> None:
    model, log = resolve("smollm2-135m"), tmp_path / "vllm.log"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    worker = f"127.0.0.1:{port}"
    config = RouterConfig(worker=(WorkerSpec(f"http://{worker}"),), port=0)
    async with running(config) as router, aiohttp.ClientSession() as session:
        client = Client(router, session, worker)
        async with vllm(model, port, log):
            await client.settled()
            assert await client.ask(chat("Which boat is first?")) == (0, 0)
            await client.settled()
            for question, salt in [("Which boat is first?", None), ("And dogs?", None), ("And dogs?", "tenant")]:
                predicted, reported = await client.ask(chat(question, salt))
                assert predicted == reported
                assert (reported > 0) == (salt is None)
                await client.settled()
            for seed in range(4):  # 4 x 16 blocks through a pool of 40: the chat is evicted
                assert await client.ask(cold_prompt(seed)) == (0, 0)
                await client.settled()
            predicted, reported = await client.ask(chat("Which boat is first?"))
            assert predicted == reported
            await client.settled()
            predicted, reported = await client.ask(cold_prompt(3))
            assert predicted == reported > 0, "the newest is still there"
            await client.settled()
            generation = router.core.worker(worker, monotonic()).slots[0].generation
        async with vllm(model, port, log):
            await client.settled(generation + 1)
            assert await client.ask(chat("Which boat is first?")) == (0, 0)
            await client.settled()
            predicted, reported = await client.ask(chat("Which boat is first?"))
            assert predicted == reported > 0
