"""The router's composition root: builds everything from one config, serves, and takes it down in order."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random

import aiohttp
import uvloop
from aiohttp import web

from kv_events.subscriber import Switchboard
from policies.registry import make_policy
from router.config import RouterConfig, WorkerSpec
from router.core import RouterCore
from router.gateway import Gateway
from router.metrics import FleetCollector, Meter, MeteredCore
from router.prompt_reader import PromptReader
from router.relay import Relay
from router.worker_link import WorkerLink
from router.workers import Workers

CONNECT_TIMEOUT_S = 3.0
UPSTREAM_KEEPALIVE_S = 4.0
"""Idle upstream connections are closed before engines do it: vLLM's and SGLang's server keeps them for 5 s."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningRouter:
    """A router that listens: its base URL, and its core for those who want to look inside."""

    url: str
    core: RouterCore


def serve(config: RouterConfig) -> None:
    """Run until SIGINT or SIGTERM. Raises OSError if the address cannot be bound, ApiError for a bad worker URL."""
    uvloop.run(_serve(config))


async def _serve(config: RouterConfig) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    async with running(config) as router:
        log.info("router listens on %s with policy %s", router.url, config.policy)
        await stop.wait()
        log.info("stopping: %d requests in flight get %g s", router.core.in_flight, config.drain_timeout_s)


@asynccontextmanager
async def running(config: RouterConfig) -> AsyncIterator[RunningRouter]:
    """Build everything, listen, and on leaving give requests in flight their time before it is all taken down."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(_upstream_session())
        switchboard = Switchboard(bind_host=config.host)
        stack.push_async_callback(switchboard.close)
        meter = Meter()
        core = _core(config, meter)
        prompts = PromptReader(config.tokenizer)
        meter.registry.register(FleetCollector(core, lambda: prompts.problems))

        def make_link(worker: str, spec: WorkerSpec) -> WorkerLink:
            intervals = {"probe_interval_s": config.probe_interval_s, "probe_timeout_s": config.probe_timeout_s}
            return WorkerLink(worker, spec, core, prompts, session, switchboard, **intervals)

        workers = Workers(core, make_link)
        stack.push_async_callback(workers.close)
        relay = Relay(core, workers.links, session, max_attempts=config.max_attempts)
        gateway = Gateway(core, workers, prompts, relay, meter, max_body_bytes=config.max_body_mib << 20)
        url = await stack.enter_async_context(_listening(gateway.application(), config))
        for spec in config.worker:
            workers.add(spec)
        yield RunningRouter(url, core)
        relay.stopping = True


def _core(config: RouterConfig, meter: Meter) -> MeteredCore:
    return MeteredCore(
        make_policy(config.policy),
        Random(config.seed),
        meter=meter,
        policy_name=config.policy,
        max_in_flight=config.max_in_flight,
        max_decisions=config.max_decisions,
        prior_prefill_tokens_per_s=config.prior_prefill_tokens_per_s,
    )


def _upstream_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=UPSTREAM_KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        auto_decompress=False,
    )


@asynccontextmanager
async def _listening(app: web.Application, config: RouterConfig) -> AsyncIterator[str]:
    """The base URL. A handler is cancelled when its client goes away, also while the engine is silent."""
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=config.drain_timeout_s)
    await runner.setup()
    try:
        await web.TCPSite(runner, config.host, config.port).start()
        host, port = runner.addresses[0][:2]
        yield f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    finally:
        await runner.cleanup()
