"""The parent of several router processes. It serves no client: it holds their address, starts them, starts again those
that die, keeps the roster of workers, and ends when all of them have ended."""

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import uvloop

from kv_events.sources import EventSource
from protocol.errors import Conflict, InvalidRequest, NotFound
from router.app import stop_requested
from router.config import RouterConfig, WorkerSpec
from router.fleet import worker_id
from router.processes.address import reserved
from router.processes.commons import Commons, commons_of
from router.processes.questions import answering
from router.workers import Roster

RESTART_INTERVAL_S = 1.0
"""A process starts at most this often."""
STOP_MARGIN_S = 10.0
"""Beyond the time to drain, for a process to take itself down before it is killed."""

log = logging.getLogger(__name__)


def supervise(config: RouterConfig) -> None:
    """Run `config.processes` processes until SIGINT or SIGTERM.

    Raises OSError if the address cannot be bound, ChildProcessError if a process cannot start, and ApiError for workers
    that several processes cannot follow.
    """
    if sys.platform != "linux":
        raise InvalidRequest("several processes need Linux, which spreads connections over them; use --processes 1")
    for spec in config.worker:
        check_spec(spec)
    uvloop.run(_supervise(config))


async def _supervise(config: RouterConfig) -> None:
    with reserved(config.host, config.port) as port, commons_of(config.processes) as commons:
        await Supervisor(replace(config, port=port), commons, stop_requested()).run()


def check_spec(spec: WorkerSpec) -> None:
    """Raises InvalidRequest if only one process could follow the worker's events."""
    if spec.events is not None and EventSource(spec.events, spec.replay, spec.topic).binds:
        raise InvalidRequest(
            f"worker {spec.url}: engines would connect to {spec.events}, where only one process can listen; let the "
            "engine bind its endpoint (tcp://*:PORT there, events=tcp://HOST:PORT here), or use --processes 1",
            param="events",
        )


class Supervisor:
    """Members ask for `config` and `roster`, say that they are `ready`, `add` and `remove` workers."""

    def __init__(self, config: RouterConfig, commons: Commons, stop: asyncio.Event) -> None:
        """`config` has the real port."""
        self._config, self._commons, self._stop = config, commons, stop
        self._roster = Roster(1, {worker_id(spec.url): spec for spec in config.worker})
        self._loads = commons.loads(0)
        self._changing = asyncio.Lock()
        self._processes: dict[int, Process] = {}  # by number
        self._served: set[int] = set()  # numbers of which a process was ready once
        self._failure: ChildProcessError | None = None

    async def run(self) -> None:
        """Until `stop` is set and all have ended. Raises ChildProcessError if a process does not even start."""
        answers: Mapping[str, Callable[..., Any]] = {
            "config": self._member_config,
            "roster": lambda: self._roster,
            "ready": self._on_ready,
            "add": self._add,
            "remove": self._remove,
        }
        async with answering(self._commons.supervisor, answers):
            keepers = [asyncio.create_task(self._keep(number)) for number in range(self._commons.processes)]
            await self._stop.wait()
            self._signal(signal.SIGTERM)
            await asyncio.wait(keepers, timeout=self._config.drain_timeout_s + STOP_MARGIN_S)
            self._signal(signal.SIGKILL)
            await asyncio.gather(*keepers)
        if self._failure is not None:
            raise self._failure

    # Processes

    async def _keep(self, number: int) -> None:
        """Run process `number`, and again whenever it dies, until all are to stop."""
        while not self._stop.is_set():
            next_start_s = asyncio.get_running_loop().time() + RESTART_INTERVAL_S
            how = await self._run(number)
            if self._stop.is_set():
                return
            if number not in self._served:
                self._failure = ChildProcessError(f"router process {number} {how} before it could serve")
                self._stop.set()
                return
            log.error("router process %d %s; it is started again", number, how)
            self._loads.forget_process(number)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_start_s):
                    await self._stop.wait()

    async def _run(self, number: int) -> str:
        """Returns how it ended."""
        commons = self._commons
        arguments = ["-P", "-m", "router.processes", str(commons.directory), str(commons.processes), str(number)]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=PIPE,  # never written to: it ends with this process
                stdout=DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},  # what we found here
                start_new_session=True,  # Ctrl-C in a terminal reaches this process alone
            )
        except OSError as error:
            return f"could not be started: {error}"
        self._processes[number] = process
        if self._stop.is_set():  # meanwhile
            self._signal(signal.SIGTERM)
        code = await process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _signal(self, signum: signal.Signals) -> None:
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(signum)

    # What members ask

    def _member_config(self, number: int) -> RouterConfig:
        """Its part of what is for all. Workers come with the roster."""
        config = self._config
        share = -(-config.max_in_flight // config.processes)
        return replace(config, worker=(), max_in_flight=share, seed=config.seed + number)

    def _on_ready(self, number: int, url: str) -> None:
        if number in self._served:
            log.info("router process %d serves again", number)
            return
        self._served.add(number)
        if len(self._served) == self._config.processes:
            what = f"policy {self._config.policy} and {self._config.processes} processes"
            log.info("router listens on %s with %s", url, what)

    async def _add(self, spec: WorkerSpec) -> tuple[int, ...]:
        """Returns the numbers of processes that have not confirmed it. Raises InvalidRequest or Conflict."""
        check_spec(spec)
        async with self._changing:
            worker = worker_id(spec.url)
            if worker in self._roster.specs:
                raise Conflict(f"worker {worker!r} is here already", param="url")
            return await self._tell({**self._roster.specs, worker: spec})

    async def _remove(self, worker: str) -> tuple[int, ...]:
        """As `_add`. Raises NotFound."""
        async with self._changing:
            if worker not in self._roster.specs:
                known = ", ".join(self._roster.specs) or "none"
                raise NotFound(f"no worker {worker!r}; workers: {known}", param="id")
            return await self._tell({name: spec for name, spec in self._roster.specs.items() if name != worker})

    async def _tell(self, specs: Mapping[str, WorkerSpec]) -> tuple[int, ...]:
        """A process that is just starting asks for the roster by itself; one that hangs finds it when it wakes up."""
        self._roster = Roster(self._roster.version + 1, specs)
        unanswered = (await self._commons.ask_all("follow", self._roster)).unanswered
        if unanswered:
            log.warning("the workers have changed; not confirmed by processes %s", unanswered)
        return unanswered
