"""`warmroute router --processes 2` as a user runs it: real processes, one port, scripted engines behind."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families
from transformers import PreTrainedTokenizerFast

from protocol.prompts import PromptEncoder
from replay.processes import Child, Processes
from tests.router.engine import Engine, answer, begin_stream, chunk, engine_running
from tests.router.fleet import chat

ROOT = Path(__file__).parents[2]
WAIT_S = 120.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="several processes need Linux")


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait for what processes do in the background; they can only be asked."""
    async with asyncio.timeout(WAIT_S):
        while not await condition():  # noqa: ASYNC110 - nothing would set an event
            await asyncio.sleep(0.02)


async def equal(value: Awaitable[object], expected: object) -> bool:
    return await value == expected


def arguments(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")


def exists(path: str) -> bool:
    return Path(path).exists()


def runs(pid: int) -> bool:
    """Whether it has not ended; perhaps nobody has taken notice of that yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class Router:
    """Two processes. Every request has a connection of its own, so that any of them may get it."""

    def __init__(self, child: Child, client: aiohttp.ClientSession, engines: list[Engine]) -> None:
        self.child, self.client, self.engines = child, client, engines
        self.url = ""

    @property
    def log(self) -> str:
        return self.child.log.read_text()

    async def listens(self) -> bool:
        found = re.search(r"listens on (http://\S+) .* 2 processes", self.log)
        self.url = found[1] if found else ""
        return bool(found)

    def members(self) -> dict[int, int]:
        """Process ids by number."""
        pids = Path(f"/proc/{self.child.process.pid}/task/{self.child.process.pid}/children").read_text().split()
        return {int(arguments(int(pid))[-1]): int(pid) for pid in pids}

    def commons(self) -> str:
        """The directory that its processes share."""
        return arguments(self.members()[0])[-3]

    def post(self, path: str, body: Any) -> Any:
        return self.client.post(self.url + path, json=body)

    async def ask(self, text: str) -> tuple[int, str]:
        async with self.post("/v1/chat/completions", chat(text)) as response:
            await response.read()
            return response.status, response.headers["x-warmroute-worker"]

    async def get(self, path: str) -> Any:
        """Asks until every process has had its say."""
        while True:
            async with self.client.get(self.url + path) as response:
                body = await response.json()
            if not body["unanswered_processes"]:
                return body

    async def remove(self, worker: str) -> tuple[int, Any]:
        """As `get`."""
        while True:
            async with self.client.delete(f"{self.url}/workers/{worker}") as response:
                body = await response.json()
            if not body.get("unanswered_processes"):
                return response.status, body

    async def samples(self, name: str, **labels: str) -> dict[str, float]:
        """A metric by process, summed over other labels. As `get`."""
        while True:
            async with self.client.get(self.url + "/metrics") as response:
                families = list(text_string_to_metric_families(await response.text()))
            samples = [sample for family in families for sample in family.samples]
            if all(sample.value for sample in samples if sample.name == "warmroute_process_up"):
                break
        sums: defaultdict[str, float] = defaultdict(float)
        for sample in samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                sums[sample.labels["process"]] += sample.value
        return sums

    async def active_requests(self) -> int:
        workers = (await self.get("/workers"))["workers"]
        return sum(slot["active_requests"] for worker in workers for slot in worker["slots"])

    async def active_requests_in_a_decision(self) -> int:
        """As one process's policy would see them."""
        async with self.post("/route", chat("Where would this go?")) as response:
            return sum(candidate["active_requests"] for candidate in (await response.json())["candidates"])

    async def both_follow(self, *workers: str) -> bool:
        """Whether both processes have exactly `workers`, and each is up and its cache known."""
        body = await self.get("/workers")
        live = {w["id"] for w in body["workers"] if w["slots"] and w["slots"][0]["cache_state"] == "live"}
        ups = [await self.samples("warmroute_worker_up", worker=worker) for worker in workers]
        counts = await self.samples("warmroute_worker_up")
        return (
            live == set(workers) and all(up == {"0": 1, "1": 1} for up in ups) and sum(counts.values()) == 2 * len(ups)
        )

    async def both_have_placed(self) -> bool:
        await self.ask("Who gets this?")
        return all(count > 0 for count in (await self.samples("warmroute_query_tokens_count")).values())


MakeRouter = Callable[..., Awaitable[Router]]


@pytest.fixture
async def make_router(tokenizer: PreTrainedTokenizerFast, tokenizer_path: str) -> AsyncIterator[MakeRouter]:
    async with AsyncExitStack() as stack:

        async def make(engines: int = 1, *options: str) -> Router:
            encoder = PromptEncoder(tokenizer)
            started = [await stack.enter_async_context(engine_running(encoder, tokenizer_path)) for _ in range(engines)]
            client = await stack.enter_async_context(
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
            )
            processes = await stack.enter_async_context(Processes())
            command = ["router", "--processes", "2", "--port", "0", "--probe-interval-s", "0.1", *options]
            named = [f"--worker={engine.url}" for engine in started]
            child = await processes.start("router", sys.executable, "-m", "warmroute", *command, *named)
            router = Router(child, client, started)
            await processes.guard(until(router.listens))
            await until(lambda: router.both_follow(*(engine.id for engine in started)))
            return router

        yield make


class Gate:
    """A script for engines: they answer once it is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def __call__(self, engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await self.opened.wait()
        return await answer(engine, request, body)


async def test_every_process_gets_requests_and_each_speaks_for_both(make_router: MakeRouter) -> None:
    router, gate = await make_router(2), Gate()
    await until(router.both_have_placed)
    before = len((await router.get("/decisions?last=1000"))["decisions"])

    for engine in router.engines:
        engine.script = gate
    asked = [asyncio.create_task(router.ask(f"Question {i}?")) for i in range(12)]
    await until(lambda: asyncio.sleep(0, sum(engine.running for engine in router.engines) == 12))
    assert {await router.active_requests() for _ in range(6)} == {12}
    assert sum((await router.samples("warmroute_in_flight")).values()) == 12
    assert {await router.active_requests_in_a_decision() for _ in range(10)} == {12}
    gate.opened.set()
    assert {status for status, _ in await asyncio.gather(*asked)} == {200}
    await until(lambda: equal(router.active_requests(), 0))

    decisions = (await router.get("/decisions?last=1000"))["decisions"]
    assert len(decisions) == before + 12 == sum((await router.samples("warmroute_query_tokens_count")).values())
    ages = [decision["age_s"] for decision in decisions]
    assert ages == sorted(ages)
    assert all(decision["finish"]["outcome"] == "ok" for decision in decisions)
    newest = (await router.get("/decisions?last=3"))["decisions"]
    assert [d["request_id"] for d in newest] == [d["request_id"] for d in decisions[:3]]


async def test_workers_come_and_go_for_all_also_for_a_process_that_starts_again(
    make_router: MakeRouter, tokenizer: PreTrainedTokenizerFast, tokenizer_path: str
) -> None:
    router = await make_router(1, "--policy", "round_robin")
    first = router.engines[0].id
    async with engine_running(PromptEncoder(tokenizer), tokenizer_path) as second:
        async with router.post("/workers", {"url": second.url}) as response:
            assert (response.status, (await response.json())["id"]) == (201, second.id)
        async with router.post("/workers", {"url": second.url}) as response:
            assert response.status == 409
        await until(lambda: router.both_follow(first, second.id))

        old, gate = router.members(), Gate()
        engines = [*router.engines, second]
        for engine in engines:
            engine.script = gate
        asked = [asyncio.create_task(router.ask(f"Question {i}?")) for i in range(16)]
        await until(lambda: asyncio.sleep(0, sum(engine.running for engine in engines) == 16))
        os.kill(old[1], signal.SIGKILL)
        await until(lambda: asyncio.sleep(0, "process 1 serves again" in router.log))

        async def its_requests_are_gone() -> bool:
            return await router.active_requests() == sum(engine.running for engine in engines) < 16

        await until(its_requests_are_gone)
        left = sum(engine.running for engine in engines)
        gate.opened.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert len([each for each in answers if isinstance(each, tuple)]) == left
        assert router.members()[1] != old[1]
        assert router.members()[0] == old[0]
        await until(lambda: router.both_follow(first, second.id))
        await until(router.both_have_placed)

        await drain_while_it_serves(router, router.engines[0], Gate())
        assert [worker["id"] for worker in (await router.get("/workers"))["workers"]] == [second.id]
        assert {(await router.ask(f"Question {i}?")) for i in range(10)} == {(200, second.id)}
    assert "Traceback" not in router.log


async def drain_while_it_serves(router: Router, engine: Engine, gate: Gate) -> None:
    engine.script = gate
    asked: list[asyncio.Task[tuple[int, str]]] = []

    async def reached() -> bool:
        if all(task.done() for task in asked):
            asked.append(asyncio.create_task(router.ask(f"Where to, {len(asked)}?")))
        return engine.running > 0

    await until(reached)
    for _ in range(3):  # whichever process is asked
        assert await router.remove(engine.id) == (
            202,
            {"worker": engine.id, "in_flight": 1, "unanswered_processes": []},
        )
    async with router.post("/workers", {"url": engine.url}) as response:
        assert response.status == 409
        assert "here already, or still leaving" in (await response.json())["error"]["message"]
    gate.opened.set()
    assert {status for status, _ in await asyncio.gather(*asked)} == {200}
    while (removed := await router.remove(engine.id))[0] != 404:
        assert removed[0] in (200, 202)
    assert "no worker" in removed[1]["error"]["message"]


async def test_a_stream_is_finished_before_the_end(make_router: MakeRouter) -> None:
    router = await make_router(1, "--drain-timeout-s", "60")
    begun, gate = asyncio.Event(), asyncio.Event()

    async def slow(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("begun"))
        begun.set()
        await gate.wait()
        await response.write(chunk("ended"))
        return response

    router.engines[0].script = slow
    async with router.post("/v1/chat/completions", chat(stream=True)) as response:
        await begun.wait()
        router.child.stopping = True
        router.child.process.send_signal(signal.SIGTERM)
        await until(lambda: asyncio.sleep(0, router.log.count("stopping:") == 2))
        gate.set()
        assert await response.read() == chunk("begun") + chunk("ended")
    assert await asyncio.wait_for(router.child.process.wait(), WAIT_S) == 0
    assert "Traceback" not in router.log


async def test_a_process_that_hangs_is_said_to_be_missing_and_catches_up(make_router: MakeRouter) -> None:
    router = await make_router(0)
    hanging = router.members()[1]
    os.kill(hanging, signal.SIGSTOP)
    async with (
        await connected_to_one_that_answers(router.url) as client,
        client.post(router.url + "/workers", json={"url": "http://127.0.0.1:9"}) as response,
    ):
        assert (response.status, (await response.json())["unanswered_processes"]) == (201, [1])
    os.kill(hanging, signal.SIGCONT)
    await until(lambda: equal(router.samples("warmroute_worker_up"), {"0": 0, "1": 0}))


async def connected_to_one_that_answers(url: str) -> aiohttp.ClientSession:
    """A client that stays on one connection, to a process that runs."""
    while True:
        client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1))
        try:
            async with client.get(url + "/health", timeout=aiohttp.ClientTimeout(0.5)):
                return client
        except TimeoutError:
            await client.close()


async def test_no_process_outlives_the_supervisor(make_router: MakeRouter) -> None:
    router = await make_router(0)
    pids, directory = router.members().values(), router.commons()
    assert exists(directory)
    router.child.stopping = True
    router.child.process.kill()
    await until(lambda: asyncio.sleep(0, not any(map(runs, pids))))
    assert not exists(directory)


async def test_a_port_in_use_by_somebody_who_would_share_it() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as server:
        port = server.getsockname()[1]
        code, stderr = await run("--processes", "2", "--port", str(port))
    assert code == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in stderr
    assert "Traceback" not in stderr


async def test_a_process_that_cannot_start_ends_the_router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import os, sys\ndef make():\n    if '--processes' in sys.argv: return min\n    os._exit(3)\n"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "policies.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, stderr = await run("--processes", "2", "--port", "0", "--policy", "mine.policies:make")
    assert code == 1
    assert re.search(r"Error: router process \d ended with exit code 3 before it could serve", stderr)
    assert "Traceback" not in stderr


async def test_events_that_only_one_process_could_receive_are_refused() -> None:
    code, stderr = await run("--processes", "2", "--port", "0", "--worker", "http://a:1,events=tcp://*:5557,topic=a")
    assert code == 2
    assert "engines would connect to tcp://*:5557, where only one process can listen" in stderr


async def run(*options: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "warmroute", "router", *options),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "400"},
    )
    _, stderr = await asyncio.wait_for(process.communicate(), WAIT_S)
    return process.returncode, " ".join(stderr.decode().split())
