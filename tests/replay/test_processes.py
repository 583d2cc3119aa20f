"""Child processes, real ones: readiness, death, and that none is left whatever way the context ends."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from replay.errors import Interrupted
from replay.processes import ChildFailed, Processes, cores_apart, free_ports, interruptible

ROOT = Path(__file__).parents[2]

SLEEPER = "import time; print('I sleep', flush=True); time.sleep(600)"
DEAF_SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); " + (
    "time.sleep(600)"
)
SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_GET(self):
        Handler.asked += 1
        self.send_response(503 if Handler.asked == 1 else 200)
        self.end_headers()
        self.wfile.write(b"live" if Handler.asked > 2 else b"syncing")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
DEMO_LIKE = """
import asyncio, sys
from replay.errors import Interrupted
from replay.processes import Processes, interruptible

async def main():
    async with Processes() as processes:
        children = [await processes.start(f"child-{i}", sys.executable, "-c", sys.argv[1]) for i in range(2)]
        print(*(child.process.pid for child in children), flush=True)
        await processes.guard(asyncio.sleep(600))

try:
    asyncio.run(interruptible(main()))
except Interrupted as interrupted:
    sys.exit(interrupted.exit_code)
"""


def python(source: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", source, *map(str, arguments)]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_children_end_with_the_context_and_so_do_their_logs():
    async with Processes() as processes:
        children = [await processes.start(f"child-{i}", *python(SLEEPER)) for i in range(2)]
        assert all(is_alive(child.process.pid) for child in children)
    assert not any(is_alive(child.process.pid) for child in children)
    assert not any(child.log.exists() for child in children)


async def test_an_error_in_the_context_stops_the_children_and_goes_on():
    pids = []

    async def failing() -> None:
        async with Processes() as processes:
            pids.append((await processes.start("child", *python(SLEEPER))).process.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await failing()
    assert not is_alive(pids[0])


async def test_a_child_that_ignores_sigterm_is_killed(eventually):
    async with Processes(stop_timeout_s=0.1) as processes:
        child = await processes.start("deaf", *python(DEAF_SLEEPER))
        await eventually(lambda: "deaf" in child.log.read_text())
    assert child.process.returncode == -signal.SIGKILL


async def test_a_stopped_child_is_no_failure():
    async with Processes() as processes:
        child = await processes.start("child", *python(SLEEPER))
        await processes.stop(child)
        assert not is_alive(child.process.pid)
        assert await processes.guard(asyncio.sleep(0, "done")) == "done"


async def test_a_death_cancels_the_work_and_shows_the_last_lines():
    source = "print('\\n'.join(f'line {i}' for i in range(50))); raise SystemExit('out of blocks')"
    cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            cancelled.set()

    async with Processes() as processes:
        await processes.start("worker-1", *python(source))
        with pytest.raises(ChildFailed) as caught:
            await processes.guard(work())
    message = str(caught.value)
    assert cancelled.is_set()
    assert "worker-1 ended with exit code 1" in message
    assert "line 49" in message
    assert message.endswith("out of blocks")
    assert "line 10\n" not in message


async def test_a_killed_child_is_named_with_its_signal():
    async with Processes() as processes:
        child = await processes.start("worker-2", *python(SLEEPER))
        child.process.kill()
        with pytest.raises(ChildFailed, match="worker-2 was killed by SIGKILL"):
            await processes.guard(asyncio.sleep(600))


async def test_work_that_fails_because_a_child_dies_is_told_as_the_death():
    async with Processes() as processes:
        child = await processes.start("worker-1", *python(SLEEPER))

        async def work() -> None:
            child.process.kill()
            raise ConnectionResetError

        with pytest.raises(ChildFailed, match="worker-1 was killed"):
            await processes.guard(work())


async def test_work_that_fails_by_itself_is_told_as_it_is():
    async def work() -> None:
        raise ConnectionResetError("by peer")

    async with Processes() as processes:
        await processes.start("worker-1", *python(SLEEPER))
        with pytest.raises(ConnectionResetError, match="by peer"):
            await processes.guard(work())


async def test_ready_means_200_and_an_accepted_body(session):
    [port] = free_ports(1)
    bodies = []

    def accept(body: bytes) -> bool:
        bodies.append(body)
        return body == b"live"

    async with Processes() as processes:
        child = await processes.start("server", *python(SERVER, port))
        await processes.wait_ready(child, session, f"http://127.0.0.1:{port}/", 20, accept)
    assert bodies == [b"syncing", b"live"]  # the 503 before them was not shown to it


async def test_a_child_that_never_gets_ready_fails_with_its_last_lines(session, eventually):
    [port] = free_ports(1)
    async with Processes() as processes:
        child = await processes.start("router", *python(SLEEPER))
        await eventually(lambda: "I sleep" in child.log.read_text())
        with pytest.raises(ChildFailed, match=r"router was not ready after 0\.2 seconds.*\nI sleep"):
            await processes.wait_ready(child, session, f"http://127.0.0.1:{port}/", 0.2)


async def test_a_server_that_accepts_and_says_nothing_is_not_ready(session):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with Processes() as processes:
            child = await processes.start("mute", *python(SLEEPER))
            with pytest.raises(ChildFailed, match="not ready"):
                await processes.wait_ready(child, session, f"http://127.0.0.1:{silent.getsockname()[1]}/", 0.2)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this platform assigns no cores")
async def test_a_child_runs_on_the_core_that_it_was_given(eventually):
    core = max(os.sched_getaffinity(0))
    async with Processes() as processes:
        child = await processes.start("pinned", *python(SLEEPER), core=core)
        assert os.sched_getaffinity(child.process.pid) == {core}
    assert os.sched_getaffinity(0) != {core} or os.cpu_count() == 1


def test_cores_are_apart_or_not_assigned_at_all(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5, 3}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: None, raising=False)
    assert cores_apart(2) == [3, 5]
    assert cores_apart(3) == [None, None, None]
    monkeypatch.delattr(os, "sched_setaffinity")
    assert cores_apart(2) == [None, None]


def test_free_ports_differ_and_can_be_listened_on():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


async def test_interruptible_passes_results_errors_and_outside_cancellation():
    assert await interruptible(asyncio.sleep(0, 7)) == 7
    with pytest.raises(asyncio.CancelledError):
        await interruptible(_cancel_myself())


async def _cancel_myself() -> None:
    raise asyncio.CancelledError


async def test_a_second_signal_does_not_cut_the_clean_up_short():
    cleaned = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(600)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(10):  # rounds of the event loop, in which the second signal arrives
                await asyncio.sleep(0)
            cleaned.append(True)

    with pytest.raises(Interrupted) as caught:
        await interruptible(work())
    assert caught.value.exit_code == 143
    assert cleaned


@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
async def test_a_signal_leaves_no_child(signum, exit_code):
    parent = await asyncio.create_subprocess_exec(*python(DEMO_LIKE, SLEEPER), stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    pids = [int(pid) for pid in (await parent.stdout.readline()).split()]
    assert len(pids) == 2
    assert all(map(is_alive, pids))
    parent.send_signal(signum)
    assert await asyncio.wait_for(parent.wait(), 20) == exit_code
    assert not any(map(is_alive, pids))
