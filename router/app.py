"""The router's composition root: builds everything from one config, serves, and takes it down in order."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

import uvloop
from prometheus_client import CollectorRegistry

from kv_events.subscriber import Switchboard
from policies.registry import make_policy
from router.collector import short_collections
from router.config import RouterConfig, WorkerSpec
from router.core import RouterCore
from router.gateway import Gateway
from router.http.server import listening
from router.http.upstream import Upstream
from router.load import LoadTable
from router.metrics import FleetCollector, Meter, MeteredCore
from router.prompt_reader import PromptReader
from router.relay import Relay
from router.worker_link import WorkerLink
from router.workers import Workers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningRouter:
    """A router that listens: its base URL, and its core for those who want to look inside."""

    url: str
    core: RouterCore


class Parts(NamedTuple):
    """What a router is made of, behind its HTTP front."""

    core: RouterCore
    workers: Workers
    prompts: PromptReader
    relay: Relay
    registry: CollectorRegistry


def serve(config: RouterConfig) -> None:
    """Run until SIGINT or SIGTERM. Raises OSError if the address cannot be bound, ApiError for a bad worker URL."""
    uvloop.run(_serve(config))


async def _serve(config: RouterConfig) -> None:
    stop = stop_requested()
    async with running(config) as router:
        log.info("router listens on %s with policy %s", router.url, config.policy)
        await stop.wait()
        log.info("stopping: %d requests in flight get %g s", router.core.in_flight, config.drain_timeout_s)


def stop_requested() -> asyncio.Event:
    """Set by SIGINT or SIGTERM from now on."""
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    return stop


@asynccontextmanager
async def running(config: RouterConfig) -> AsyncIterator[RunningRouter]:
    """Build everything, listen, and on leaving give requests in flight their time before it is all taken down."""
    async with AsyncExitStack() as stack:
        parts = build(stack, config)
        url = await stack.enter_async_context(front(config, Gateway(*parts)))
        for spec in config.worker:
            parts.workers.add(spec)
        yield RunningRouter(url, parts.core)
        parts.relay.stopping = True


def build(stack: AsyncExitStack, config: RouterConfig, loads: LoadTable | None = None) -> Parts:
    """All but the front; it has no workers yet. `stack` takes it down. `loads` is what several processes share."""
    stack.enter_context(short_collections())
    upstream = Upstream()
    stack.callback(upstream.close)
    switchboard = Switchboard(bind_host=config.host)
    stack.push_async_callback(switchboard.close)
    meter = Meter()
    core = _core(config, meter, loads)
    prompts = PromptReader(config.tokenizer)
    registry = CollectorRegistry()
    registry.register(meter)
    registry.register(FleetCollector(core, lambda: prompts.problems))

    def make_link(worker: str, spec: WorkerSpec) -> WorkerLink:
        intervals = {"probe_interval_s": config.probe_interval_s, "probe_timeout_s": config.probe_timeout_s}
        return WorkerLink(worker, spec, core, prompts, upstream, switchboard, **intervals)

    workers = Workers(core, make_link)
    stack.push_async_callback(workers.close)
    relay = Relay(core, workers.links, upstream, max_attempts=config.max_attempts)
    return Parts(core, workers, prompts, relay, registry)


def front(config: RouterConfig, gateway: Gateway, *, reuse_port: bool = False) -> AbstractAsyncContextManager[str]:
    """The HTTP server; gives its base URL."""
    return listening(
        gateway.handle,
        config.host,
        config.port,
        max_body_bytes=config.max_body_mib << 20,
        grace_s=config.drain_timeout_s,
        reuse_port=reuse_port,
    )


def _core(config: RouterConfig, meter: Meter, loads: LoadTable | None) -> MeteredCore:
    return MeteredCore(
        make_policy(config.policy),
        Random(config.seed),
        meter=meter,
        policy_name=config.policy,
        max_in_flight=config.max_in_flight,
        max_decisions=config.max_decisions,
        max_index_bytes=config.max_index_mib << 20,
        prior_prefill_tokens_per_s=config.prior_prefill_tokens_per_s,
        assumed_cache_tokens=config.assumed_cache_tokens,
        loads=loads,
    )
