"""The composition root: from a configuration to a worker whose parts know each other."""

import asyncio
import gc
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from kv_events.publisher import EventPublisher, NullPublisher, ZmqPublisher
from protocol.prompts import PromptEncoder
from worker.block_manager import BlockManager
from worker.engine import Engine
from worker.engine_thread import EngineThread
from worker.generation_params import ModelLimits, SamplingDefaults
from worker.metrics import Metrics
from worker.model_store import resolve
from worker.plan import PooledRunner
from worker.scheduler import Scheduler
from worker.server import ServedModel, Server, bound_socket
from worker.sim_runner import open_runner as open_sim_runner
from worker.timing import Timing

SIM_ANSWER_TOKENS = 256  # where nobody says how many: nothing else would end a simulated answer


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """All that a worker can be told. None leaves a choice to the model, the device or the machine.

    With a `timing` the engine is simulated, on no device; None: torch runs the model. Without `kv_events` nothing is
    published. The host `*` in an endpoint is the worker's own `host`.
    """

    model: str
    host: str = "127.0.0.1"
    port: int = 8101
    timing: Timing | None = None
    device: str = "auto"
    block_size: int = 16
    blocks: int | None = None
    max_num_seqs: int = 128
    max_batched_tokens: int = 2048
    max_model_len: int | None = None
    kv_events: str | None = "tcp://*:0"
    kv_replay: str | None = "tcp://*:0"
    served_model_name: str | None = None
    threads: int | None = None
    seed: int = 0
    prefix_caching: bool = True


class Worker:
    """A worker that has its port, its model and its event sockets, and waits for `run`.

    Raises OSError for a port or endpoint that cannot be had, ValueError (UnknownModel, UnsupportedModel among them) for
    what cannot be served so, ModelBuildError for an alias that cannot be built.
    """

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        self._socket = bound_socket(config.host, config.port)  # first: a port in use should not cost a model's loading
        self._publisher = _publisher(config, self._socket.getsockname()[0])
        path = resolve(config.model, weights=config.timing is None)
        timing = config.timing
        self._runner, encoder = _open_torch(config, path) if timing is None else _open_sim(config, timing, path)
        self._engine = _engine(config, self._runner, self._publisher)
        self._model = ServedModel(
            name=config.served_model_name or config.model,
            root=str(path),
            created_s=int(time.time()),
            encoder=encoder,
            defaults=_sampling_defaults(config, path),
            limits=ModelLimits(self._engine.max_model_len, self._runner.model.vocab_size),
        )

    async def run(self, announce: Callable[[str], None]) -> None:
        """Serve until SIGTERM or SIGINT. `announce` gets one line as soon as requests are welcome."""
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):  # Windows has no such handlers
                asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        engine = EngineThread(self._engine)
        metrics = Metrics(self._model.name, self._cache_config(), lambda: engine.stats)
        server = Server(engine, self._model, self._publisher, metrics)
        gc.freeze()  # all of this stays: looking through it again and again would stop both threads for 0.1 s each time
        try:
            async with server.listening(self._socket) as url:
                announce(self._ready(url))
                await stopped.wait()
        finally:
            self._publisher.close()

    def _cache_config(self) -> dict[str, str]:
        """The labels of vllm:cache_config_info."""
        return {
            "block_size": str(self._runner.block_size),
            "num_gpu_blocks": str(self._runner.num_blocks),
            "enable_prefix_caching": str(self._config.prefix_caching),
        }

    def _ready(self, url: str) -> str:
        events = self._publisher.describe()
        sources = f"KV events at {events['endpoint']}, replay at {events['replay_endpoint']}"
        return f"{self._model.name} is ready at {url}; {sources if events['endpoint'] else 'no KV events'}"


def _open_torch(config: WorkerConfig, path: Path) -> tuple[PooledRunner, PromptEncoder]:
    from worker.torch_runner import open_runner  # only here: a simulated engine does without torch

    runner = open_runner(
        path,
        device=config.device,
        num_blocks=config.blocks,
        block_size=config.block_size,
        max_model_len=config.max_model_len,
        threads=config.threads,
    )
    return runner, PromptEncoder.load(str(path))  # this after that: without torch it leaves transformers without models


def _open_sim(config: WorkerConfig, timing: Timing, path: Path) -> tuple[PooledRunner, PromptEncoder]:
    encoder = PromptEncoder.load(str(path))
    runner = open_sim_runner(
        path,
        encoder.tokenizer,
        timing,
        num_blocks=config.blocks,
        block_size=config.block_size,
        max_model_len=config.max_model_len,
    )
    return runner, encoder


def _sampling_defaults(config: WorkerConfig, path: Path) -> SamplingDefaults:
    defaults = SamplingDefaults.of_model(path)
    if config.timing is None or defaults.max_tokens is not None:
        return defaults
    return replace(defaults, max_tokens=SIM_ANSWER_TOKENS)


def _publisher(config: WorkerConfig, own_host: str) -> EventPublisher:
    """A cache that is off has no events."""
    if config.kv_events is None or not config.prefix_caching:
        return NullPublisher()
    return ZmqPublisher(config.kv_events, config.kv_replay, bind_host=own_host)


def _engine(config: WorkerConfig, runner: PooledRunner, publisher: EventPublisher) -> Engine:
    blocks = BlockManager(runner.num_blocks, runner.block_size, caching=config.prefix_caching)
    scheduler = Scheduler(blocks, max_batched_tokens=config.max_batched_tokens, max_num_seqs=config.max_num_seqs)
    engine = Engine(runner, scheduler, publisher, Random(config.seed))
    if config.max_model_len is not None and engine.max_model_len < config.max_model_len:
        raise ValueError(
            f"max_model_len is {config.max_model_len}, but the KV cache of {runner.num_blocks} blocks "
            f"holds {engine.max_model_len} tokens"
        )
    return engine
