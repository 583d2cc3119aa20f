"""A core with workers on it, and the whole router with engines behind it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
import uvloop
from transformers import PreTrainedTokenizerFast

from policies.registry import make_policy
from protocol.prompts import PromptEncoder
from router.app import running
from router.config import RouterConfig, WorkerSpec
from router.core import RouterCore
from router.records import ModelCard, WorkerInfo
from tests.router.engine import engine_running
from tests.router.fakes import SIZE
from tests.router.fleet import Fleet

MakeCore = Callable[..., RouterCore]
MakeFleet = Callable[..., Awaitable[Fleet]]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the router runs on: its transports differ from asyncio's where connections end."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def make_core() -> MakeCore:
    def make(
        workers: int = 2, *, policy: str = "expected_work", ranks: tuple[int, ...] = (0,), max_in_flight: int = 100
    ) -> RouterCore:
        core = RouterCore(
            make_policy(policy),
            Random(0),
            policy_name=policy,
            max_in_flight=max_in_flight,
            max_decisions=10,
            prior_prefill_tokens_per_s=1000.0,
            max_index_bytes=1 << 30,
            assumed_cache_tokens=4096,
        )
        for i in range(workers):
            worker = core.add_worker(f"http://w{i}:1")
            core.on_worker_up(worker, WorkerInfo((ModelCard("m"), ModelCard("lora", parent="m")), SIZE, ranks))
        return core

    return make


@pytest.fixture
def tokenizer_path(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> str:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


@pytest.fixture
async def make_fleet(tokenizer: PreTrainedTokenizerFast, tokenizer_path: str) -> AsyncIterator[MakeFleet]:
    async with AsyncExitStack() as stack:

        async def make(engines: int = 2, **options: Any) -> Fleet:
            encoder = PromptEncoder(tokenizer)
            started = [await stack.enter_async_context(engine_running(encoder, tokenizer_path)) for _ in range(engines)]
            config = RouterConfig(
                worker=tuple(WorkerSpec(engine.url) for engine in started),
                port=0,
                probe_interval_s=0.05,
                probe_timeout_s=0.5,
                drain_timeout_s=0.2,
            )
            router = await stack.enter_async_context(running(replace(config, **options)))
            client = await stack.enter_async_context(aiohttp.ClientSession())
            fleet = Fleet(router, started, client)
            await fleet.all_live()
            return fleet

        yield make
