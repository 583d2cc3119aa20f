"""One router process among several: all that a router on its own has, and answers for its siblings."""

import asyncio
import logging
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any

import uvloop

from protocol.errors import ApiError
from router.app import Parts, build, front, stop_requested
from router.config import RouterConfig
from router.logs import log_to_stderr
from router.processes.commons import Commons, Sight
from router.processes.gateway import JointGateway
from router.processes.questions import answering, ask

START_TIMEOUT_S = 60.0
"""For the supervisor's answers: while many processes start, the machine is busy."""
JOIN_TIMEOUT_S = 10.0
"""To meet the workers before the first client comes: a process that knows none yet could only refuse."""

log = logging.getLogger(__name__)


def serve(commons: Commons, number: int) -> None:
    """Run until SIGINT or SIGTERM, or until the supervisor is gone. Exits with 1 if it cannot start."""
    try:
        uvloop.run(_serve(commons, number))
    except (OSError, ApiError) as error:
        log.error("cannot start: %s", error)
        sys.exit(1)


async def _serve(commons: Commons, number: int) -> None:
    def supervisor(question: str, *arguments: object) -> Awaitable[Any]:
        return ask(commons.supervisor, question, *arguments, timeout_s=START_TIMEOUT_S)

    config: RouterConfig = await supervisor("config", number)
    log_to_stderr(config.log_level, number)
    async with AsyncExitStack() as stack:
        parts = build(stack, config, commons.loads(number))
        await stack.enter_async_context(answering(commons.member(number), answers_of(parts)))
        parts.workers.follow(await supervisor("roster"))
        with suppress(TimeoutError):
            async with asyncio.timeout(JOIN_TIMEOUT_S):
                await parts.workers.checked()
        stop = stop_requested()
        _stop_with_supervisor(stop, commons)
        gateway = JointGateway(parts, commons, max_decisions=config.max_decisions)
        url = await stack.enter_async_context(front(config, gateway, reuse_port=True))
        await supervisor("ready", number, url)
        await stop.wait()
        log.info("stopping: %d requests in flight get %g s", parts.core.in_flight, config.drain_timeout_s)
        parts.relay.stopping = True


def answers_of(parts: Parts) -> Mapping[str, Callable[..., Any]]:
    return {
        "follow": parts.workers.follow,
        "sight": lambda: Sight(parts.core.workers(time.monotonic()), parts.prompts.problems),
        "decisions": parts.core.decisions,
        "scrape": lambda: list(parts.registry.collect()),
    }


def _stop_with_supervisor(stop: asyncio.Event, commons: Commons) -> None:
    """Standard input is a pipe that ends with the supervisor, however that ends."""
    loop = asyncio.get_running_loop()

    def orphaned() -> None:
        loop.remove_reader(sys.stdin)
        log.error("the supervisor is gone")
        shutil.rmtree(commons.directory, ignore_errors=True)
        stop.set()

    loop.add_reader(sys.stdin, orphaned)
