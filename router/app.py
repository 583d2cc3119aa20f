"""The router's composition root: builds everything from one config, serves, and takes it down in order."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random

import uvloop
from prometheus_client import CollectorRegistry

from kv_events.subscriber import Switchboard
from policies.registry import make_policy
from router.config import RouterConfig, WorkerSpec
from router.core import RouterCore
from router.gateway import Gateway
from router.http.server import listening
from router.http.upstream import Upstream
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
        upstream = Upstream()
        stack.callback(upstream.close)
        switchboard = Switchboard(bind_host=config.host)
        stack.push_async_callback(switchboard.close)
        meter = Meter()
        core = _core(config, meter)
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
        gateway = Gateway(core, workers, prompts, relay, registry)
        front = listening(
            gateway.handle,
            config.host,
            config.port,
            max_body_bytes=config.max_body_mib << 20,
            grace_s=config.drain_timeout_s,
        )
        url = await stack.enter_async_context(front)
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
        max_index_bytes=config.max_index_mib << 20,
        prior_prefill_tokens_per_s=config.prior_prefill_tokens_per_s,
    )
