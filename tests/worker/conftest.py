"""A worker without torch: the real engine, scheduler and server over a runner that follows a script."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from threading import Event

import aiohttp
import pytest
from transformers import PreTrainedTokenizerFast

from kv_events.publisher import EventPublisher, NullPublisher
from protocol.errors import Unavailable
from protocol.prompts import PromptEncoder
from worker.block_manager import BlockManager
from worker.engine import Engine
from worker.engine_thread import EngineThread
from worker.generation_params import ModelLimits, SamplingDefaults
from worker.metrics import Metrics
from worker.plan import ModelSpec, SampledToken, ScheduledSequence, StepPlan
from worker.scheduler import Scheduler
from worker.server import ServedModel, Server, bound_socket

BLOCK_SIZE = 16
TIMEOUT_S = 20.0


class ScriptedRunner:
    """Says `script` and then the end token, whatever the prompt. `hold` stops it in a step, until the gate opens."""

    def __init__(self, script: Sequence[int], model: ModelSpec) -> None:
        self.script = script
        self.model = model
        self.gate = Event()
        self.gate.set()
        self.held = Event()
        self.held_from = 0
        self.failure: Exception | None = None

    def hold(self, from_token: int = 0) -> None:
        """Close the gate to every step that draws a sequence's token of that index, or a later one."""
        self.held_from = from_token
        self.gate.clear()

    def run(self, plan: StepPlan) -> list[SampledToken]:
        drawn = max((scheduled.draw.index for scheduled in plan.drawing if scheduled.draw), default=0)
        if drawn >= self.held_from and not self.gate.is_set():
            self.held.set()
            assert self.gate.wait(TIMEOUT_S), "the test never opened the gate"
        if self.failure is not None:
            raise self.failure
        return [self._next(scheduled) for scheduled in plan.drawing]

    def _next(self, scheduled: ScheduledSequence) -> SampledToken:
        draw = scheduled.draw
        assert draw is not None
        says = [*self.script, *self.model.eos_token_ids]
        token_id = says[min(draw.index, len(says) - 1)]
        if draw.params.logprobs is None:
            return SampledToken(token_id)
        others = [(token_id + other, -0.5 - other) for other in range(draw.params.logprobs)]
        return SampledToken(token_id, -0.5, tuple(others))


@dataclass
class RunningWorker:
    """A served worker and its parts, for tests to look at."""

    url: str
    engine: EngineThread
    runner: ScriptedRunner
    tokenizer: PreTrainedTokenizerFast
    client: aiohttp.ClientSession

    async def post(self, path: str, **body: object) -> tuple[int, dict]:  # type: ignore[type-arg]
        async with self.client.post(path, json=body) as response:
            return response.status, await response.json()

    async def events(self, path: str, **body: object) -> list[str]:
        """The data of a stream's events."""
        async with self.client.post(path, json=body | {"stream": True}) as response:
            assert response.status == 200, await response.text()
            text = await response.text()
        assert text.endswith("\n\n")
        return [event.removeprefix("data: ") for event in text.removesuffix("\n\n").split("\n\n")]

    async def until_forgotten(self) -> None:
        """Wait until nobody waits for the engine any more, though it may still compute."""
        await until(lambda: self.engine.sequences == 0)

    async def until_idle(self) -> None:
        """Wait until the engine has nothing to do."""
        await until(lambda: (self.engine.stats.running, self.engine.stats.waiting) == (0, 0))

    async def open_gate_when_closing(self) -> None:
        """Let a held step go as soon as the engine takes nothing new."""

        def closing() -> bool:
            try:
                self.engine.check_open()
            except Unavailable:
                return True
            return False

        await until(closing)
        self.runner.gate.set()

    async def until_held(self) -> None:
        """Wait until a step stands at the closed gate."""
        assert await asyncio.to_thread(self.runner.held.wait, TIMEOUT_S)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for another thread or process to make something true."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - a thread or a process cannot set an asyncio.Event
            await asyncio.sleep(0.001)


@pytest.fixture
def serve(tokenizer: PreTrainedTokenizerFast):  # type: ignore[no-untyped-def]
    """`async with serve("what it says") as worker`: a worker on a real socket."""

    @asynccontextmanager
    async def serving(
        text: str = "hello there",
        *,
        blocks: int = 64,
        max_model_len: int = 512,
        max_batched_tokens: int = 64,
        publisher: EventPublisher | None = None,
        grace_s: float = 0.0,
        max_sequences: int = 64,
    ) -> AsyncIterator[RunningWorker]:
        spec = ModelSpec(len(tokenizer), max_model_len, frozenset({tokenizer.eos_token_id}))
        runner = ScriptedRunner(tokenizer.encode(text, add_special_tokens=False), spec)
        scheduler = Scheduler(BlockManager(blocks, BLOCK_SIZE), max_batched_tokens=max_batched_tokens, max_num_seqs=8)
        publisher = publisher or NullPublisher()
        core = Engine(runner, scheduler, publisher, Random(0))
        engine = EngineThread(core, max_sequences)
        cache_config = {"block_size": str(BLOCK_SIZE), "num_gpu_blocks": str(blocks)}
        limits = ModelLimits(core.max_model_len, spec.vocab_size)
        encoder = PromptEncoder(tokenizer)
        model = ServedModel("scripted", "/models/scripted", 1_700_000_000, encoder, SamplingDefaults(), limits)
        server = Server(engine, model, publisher, Metrics("scripted", cache_config, lambda: engine.stats))
        try:
            async with (
                server.listening(bound_socket("127.0.0.1", 0), grace_s) as url,
                aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(TIMEOUT_S)) as client,
            ):
                yield RunningWorker(url, engine, runner, tokenizer, client)
        finally:
            runner.gate.set()
            publisher.close()

    return serving
