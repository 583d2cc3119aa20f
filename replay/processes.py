"""Servers as child processes, for as long as a context lasts: none outlives it, whatever way it is left."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp

from replay.errors import Interrupted

POLL_INTERVAL_S = 0.1
DEATH_NOTICE_S = 0.5
TAIL_LINES = 15

T = TypeVar("T")


class ChildFailed(Exception):
    """A child ended by itself, or did not get ready in time. The message ends with the last lines that it wrote."""


@dataclass(slots=True, eq=False)
class Child:
    name: str
    process: asyncio.subprocess.Process
    log: Path
    stopping: bool = False

    def failed(self, what: str) -> ChildFailed:
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return ChildFailed("\n".join([f"{self.name} {what}; the last lines that it wrote:", *lines]))


class Processes:
    """Starts children, notices when one dies, and stops those that are left: SIGTERM, then SIGKILL.

    What a child writes goes to a file that is removed at the end.
    """

    def __init__(self, stop_timeout_s: float = 10.0) -> None:
        self._stop_timeout_s = stop_timeout_s
        self._children: dict[Child, asyncio.Task[None]] = {}
        self._failure: asyncio.Future[ChildFailed] = asyncio.get_running_loop().create_future()
        self._logs = TemporaryDirectory(prefix="warmroute-")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.gather(*(self.stop(child) for child in list(self._children)))
        self._logs.cleanup()

    async def start(self, name: str, *command: str, core: int | None = None) -> Child:
        """Run `command`, on one CPU core if `core` names it. `name` is for messages."""
        log = Path(self._logs.name) / f"{name}.log"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in a terminal reaches us alone, and we stop them in our order
            )
        if core is not None:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, {core})  # before it has started any thread
        child = Child(name, process, log)
        self._children[child] = asyncio.create_task(self._watch(child))
        return child

    async def _watch(self, child: Child) -> None:
        code = await child.process.wait()
        if not child.stopping and not self._failure.done():
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            self._failure.set_result(child.failed(how))

    async def stop(self, child: Child) -> None:
        """End it and wait for that. Nothing happens to a child that has ended already."""
        child.stopping = True
        with suppress(ProcessLookupError):
            child.process.terminate()
        try:
            await asyncio.wait_for(child.process.wait(), self._stop_timeout_s)
        except TimeoutError:
            child.process.kill()
            await child.process.wait()
        await self._children.pop(child)

    async def wait_ready(
        self,
        child: Child,
        session: aiohttp.ClientSession,
        url: str,
        timeout_s: float,
        accept: Callable[[bytes], bool] = lambda body: True,
    ) -> None:
        """Ask `url` until it answers 200 with a body that `accept` takes. Raises ChildFailed after `timeout_s`.

        A child that dies meanwhile is noticed by `guard`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if await _accepted(session, url, accept):
                        return
                    await asyncio.sleep(POLL_INTERVAL_S)
        except TimeoutError as error:
            raise child.failed(f"was not ready after {timeout_s:g} seconds") from error

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns; cancels it and raises ChildFailed when a child dies before."""
        task = asyncio.create_task(work)
        either: set[asyncio.Future[Any]] = {task, self._failure}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and task.exception():  # perhaps because of a child whose death is just being noticed
                await asyncio.wait({self._failure}, timeout=DEATH_NOTICE_S)
            if self._failure.done():
                raise self._failure.result()
            return await task
        finally:
            task.cancel()
            await asyncio.wait({task})


async def _accepted(session: aiohttp.ClientSession, url: str, accept: Callable[[bytes], bool]) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200 and accept(await response.read())
    except (aiohttp.ClientError, OSError):
        return False


def cores_apart(processes: int) -> list[int | None]:
    """A CPU core of its own for each process, or None for all where there are too few or none can be assigned."""
    if not hasattr(os, "sched_setaffinity"):  # macOS, Windows
        return [None] * processes
    cores = sorted(os.sched_getaffinity(0))[:processes]
    return [*cores] if len(cores) == processes else [None] * processes


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on, all different. They stay free only as long as nobody else takes them."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


async def interruptible(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. The first SIGINT, SIGTERM or SIGHUP cancels it, and Interrupted is raised once it has
    cleaned up; further ones are ignored, so that nobody's impatience leaves a process behind."""
    task = asyncio.create_task(work)
    received: list[int] = []

    def on_signal(signum: int) -> None:
        if not received:
            task.cancel()
        received.append(signum)

    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for each in signals:
        loop.add_signal_handler(each, on_signal, each)
    try:
        return await task
    except asyncio.CancelledError:
        if received:
            raise Interrupted(received[0]) from None
        raise
    finally:
        for each in signals:
            loop.remove_signal_handler(each)
