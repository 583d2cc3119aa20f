"""The whole router over real sockets: HTTP in front, scripted engines behind, ZeroMQ between."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families
from transformers import PreTrainedTokenizerFast

from protocol.prompts import PromptEncoder
from protocol.sse import EventReader
from router.app import RunningRouter, running
from router.config import RouterConfig, WorkerSpec
from router.core import RouterCore
from tests.router.engine import SIZE, Engine, answer, begin_stream, chunk, engine_running

SYSTEM = "You sell ferry tickets. Heron leaves at seven, Kestrel at nine, Osprey at noon. Bicycles travel free. " * 3
WAIT_S = 15.0


def chat(user: str = "When?", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
    return {"model": "tiny", "messages": messages, **fields}


async def until(condition: Callable[[], object]) -> None:
    """Wait for what the router does in the background; a state, looked at, is all there is to wait on."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - nothing would set an event
            await asyncio.sleep(0.005)


class Fleet:
    """A router in front of fake engines, and a client."""

    def __init__(self, router: RunningRouter, engines: list[Engine], client: aiohttp.ClientSession) -> None:
        self.router, self.engines, self.client = router, engines, client

    @property
    def core(self) -> RouterCore:
        return self.router.core

    def engine(self, worker: str) -> Engine:
        return next(engine for engine in self.engines if engine.id == worker)

    def post(self, path: str = "/v1/chat/completions", body: Any = None, **options: Any) -> Any:
        return self.client.post(self.router.url + path, json=chat() if body is None else body, **options)

    async def ask(self, body: Any = None, path: str = "/v1/chat/completions") -> tuple[int, Any, str | None]:
        """(status, JSON, worker)"""
        async with self.post(path, body) as response:
            return response.status, await response.json(), response.headers.get("x-warmroute-worker")

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.client.get(self.router.url + path) as response:
            return response.status, await response.json()

    def slot(self, worker: str) -> Any:
        (report,) = [report for report in self.core.workers(0.0) if report.id == worker]
        return report.slots[0] if report.slots else None

    def live(self, worker: str) -> bool:
        slot = self.slot(worker)
        return slot is not None and slot.cache_state == "live"

    async def all_live(self) -> None:
        await until(lambda: all(self.live(engine.id) for engine in self.engines))

    def idle(self) -> bool:
        self.core.check()
        return self.core.in_flight == 0 and all(engine.running == 0 for engine in self.engines)


MakeFleet = Callable[..., Awaitable[Fleet]]


@pytest.fixture
def tokenizer_path(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> str:
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


@pytest.fixture
async def make_fleet(tokenizer: PreTrainedTokenizerFast, tokenizer_path: str) -> AsyncIterator[MakeFleet]:
    async with AsyncExitStack() as stack:

        async def make(engines: int = 2, **options: Any) -> Fleet:
            encoder = PromptEncoder(tokenizer)
            started = [await stack.enter_async_context(engine_running(encoder, tokenizer_path)) for _ in range(engines)]
            config = RouterConfig(
                worker=tuple(WorkerSpec(engine.url) for engine in started),
                port=0,
                probe_interval_s=0.05,
                probe_timeout_s=0.5,
                drain_timeout_s=0.2,
            )
            router = await stack.enter_async_context(running(replace(config, **options)))
            client = await stack.enter_async_context(aiohttp.ClientSession())
            fleet = Fleet(router, started, client)
            await fleet.all_live()
            return fleet

        yield make


# Placement, end to end


async def test_a_follow_up_goes_where_its_prefix_is_and_prediction_equals_report(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(3)
    _, _, first = await fleet.ask()
    assert first is not None
    await until(lambda: fleet.slot(first).blocks > 0)
    async with fleet.post(body=chat("And back?")) as response:
        usage = (await response.json())["usage"]
        assert response.headers["x-warmroute-worker"] == first
        predicted = int(response.headers["x-warmroute-cached-tokens"])
    assert predicted == usage["prompt_tokens_details"]["cached_tokens"] > len(SYSTEM) * 0.9
    _, body = await fleet.get("/decisions?last=1")
    (decision,) = body["decisions"]
    assert decision["finish"]["reported_cached_tokens"] == decision["predicted_cached_tokens"] == predicted
    assert len(decision["candidates"]) == 3


async def test_completions_with_text_ids_and_lists_are_matched(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(2)
    ids = list(range(5, 5 + 4 * SIZE))
    _, _, first = await fleet.ask({"model": "tiny", "prompt": ids}, "/v1/completions")
    assert first is not None
    await until(lambda: fleet.slot(first).blocks == 4)
    _, explained, _ = await fleet.ask({"model": "tiny", "prompt": [ids, [*ids, 9]]}, "/route")
    assert (explained["slot"], explained["predicted_cached_tokens"]) == (first, 3 * SIZE + 4 * SIZE)


async def test_a_cleared_cache_is_not_predicted(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)
    _, _, worker = await fleet.ask()
    assert worker is not None
    await until(lambda: fleet.slot(worker).blocks > 0)
    fleet.engines[0].clear()
    await until(lambda: fleet.slot(worker).blocks == 0)
    _, explained, _ = await fleet.ask(chat(), "/route")
    assert explained["predicted_cached_tokens"] == 0


async def test_a_router_that_starts_late_learns_what_an_idle_engine_holds(
    make_fleet: MakeFleet, tokenizer: PreTrainedTokenizerFast, tokenizer_path: str
) -> None:
    async with engine_running(PromptEncoder(tokenizer), tokenizer_path) as warm:
        warm.serve(chat())
        fleet = await make_fleet(2)
        async with fleet.post("/workers", {"url": warm.url}) as response:
            assert response.status == 201
        await until(lambda: fleet.live(warm.id))
        _, explained, _ = await fleet.ask(chat("Late?"), "/route")
        assert explained["slot"] == warm.id
        assert explained["predicted_cached_tokens"] > 0


async def test_without_a_tokenizer_load_decides_and_says_so(make_fleet: MakeFleet, tmp_path: Path) -> None:
    fleet = await make_fleet(2, tokenizer=str(tmp_path / "nowhere"))
    status, _, _ = await fleet.ask()
    assert status == 200
    _, body = await fleet.get("/decisions")
    assert "no tokenizer" in body["decisions"][0]["unknown_prompt"]
    _, ready = await fleet.get("/ready")
    assert "nowhere" in ready["placed_by_load_only"]["tiny"]


@pytest.mark.parametrize("where", ["header", "user"])
async def test_a_session_stays_where_it_is(make_fleet: MakeFleet, where: str) -> None:
    fleet = await make_fleet(3, policy="session")
    for name in "abcdef":
        seen = set()
        for i in range(3):
            body = chat(f"{i}") | ({"user": name} if where == "user" else {})
            headers = {"x-session-id": name} if where == "header" else {}
            async with fleet.post(body=body, headers=headers) as response:
                seen.add(response.headers["x-warmroute-worker"])
        assert len(seen) == 1


async def test_a_request_that_every_worker_would_serve_too_late_is_shed(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1, policy="ttft:slo_s=0.000001")
    async with fleet.post() as response:
        assert (response.status, response.headers["retry-after"]) == (429, "1")
        assert "over the placement policy's limit" in (await response.json())["error"]["message"]
    assert fleet.core.in_flight == 0


# The relay


async def test_bytes_and_headers_pass_through(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)
    raw = b'{"model":"tiny" ,"messages":[{"role":"user","content":"h\\u00e9"}],  "x_unknown": 1.50}'
    headers = {
        "authorization": "Bearer k",
        "x-request-id": "mine-1",
        "content-type": "application/json",
        "x-tenant": "a",
    }
    async with fleet.client.post(fleet.router.url + "/v1/chat/completions?q=1", data=raw, headers=headers) as response:
        assert response.status == 200
        assert response.headers["x-request-id"] == "mine-1"
    request, _ = fleet.engines[0].received[0]
    assert await request.read() == raw
    assert request.path_qs == "/v1/chat/completions?q=1"
    for name, value in headers.items():
        assert request.headers[name] == value
    assert "x-data-parallel-rank" not in request.headers


async def test_a_stream_is_the_engines_bytes_in_time(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)
    gate = asyncio.Event()

    async def slow(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("one"))
        await gate.wait()
        await response.write(chunk("two"))
        return response

    fleet.engines[0].script = slow
    async with fleet.post(body=chat(stream=True)) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["x-engine"] == "fake"
        assert await response.content.readany() == chunk("one"), "passed on before the next one exists"
        gate.set()
        assert await response.content.read() == chunk("two")
    await until(fleet.idle)


async def test_an_engines_refusal_passes_through(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(2)

    async def refuse(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "too long: 9 > 8"}}, status=400)

    for engine in fleet.engines:
        engine.script = refuse
    status, body, _ = await fleet.ask()
    assert (status, body["error"]["message"]) == (400, "too long: 9 > 8")
    assert sum(len(engine.received) for engine in fleet.engines) == 1, "a refusal is an answer, not a failure"
    assert all(report.health == "up" for report in fleet.core.workers(0.0))


async def test_backpressure_goes_elsewhere_then_to_the_client(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(2, policy="round_robin")

    async def busy(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "queue is full"}}, status=503, headers={"retry-after": "7"})

    fleet.engines[0].script = busy
    for _ in range(4):
        status, _, worker = await fleet.ask()
        assert (status, worker) == (200, fleet.engines[1].id)
    fleet.engines[1].script = busy
    async with fleet.post() as response:
        assert (response.status, response.headers["retry-after"]) == (503, "7")
        assert (await response.json())["error"]["message"] == "queue is full"
    assert all(report.health == "up" for report in fleet.core.workers(0.0))
    await until(fleet.idle)


async def test_other_v1_paths_are_placed_by_load(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)

    async def embed(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"path": request.path, "method": request.method})

    fleet.engines[0].script = embed
    _, body, worker = await fleet.ask({"model": "tiny", "input": "x"}, "/v1/embeddings")
    assert (body, worker) == ({"path": "/v1/embeddings", "method": "POST"}, fleet.engines[0].id)


# Failures


async def test_a_worker_killed_mid_stream(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(2)

    async def hang(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("one") + b"data: {half")
        await asyncio.Event().wait()
        raise AssertionError

    for engine in fleet.engines:
        engine.script = hang
    async with fleet.post(body=chat(stream=True)) as response:
        worker = response.headers["x-warmroute-worker"]
        await response.content.readany()
        await fleet.engine(worker).stop()
        rest = await response.content.read()
    reader = EventReader()
    *_, error = reader.feed(chunk("one") + b"data: {half" + rest)
    assert "worker failed while it answered" in json.loads(error)["error"]["message"]
    await until(lambda: any(report.health == "down" for report in fleet.core.workers(0.0)))
    await until(fleet.idle)


async def test_what_has_no_answer_yet_is_rerouted(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(2, policy="round_robin")

    async def silent(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    fleet.engines[0].script = silent
    tasks = [asyncio.create_task(fleet.ask(chat(f"{i}?"))) for i in range(6)]
    await until(lambda: fleet.engines[0].running >= 2)
    await fleet.engines[0].stop()
    answers = await asyncio.gather(*tasks)
    assert {(status, worker) for status, _, worker in answers} == {(200, fleet.engines[1].id)}
    await until(fleet.idle)
    _, body = await fleet.get("/decisions?last=50")
    outcomes = [decision["finish"]["outcome"] for decision in body["decisions"]]
    assert outcomes.count("rerouted") >= 2
    assert outcomes.count("ok") == 6


async def test_a_worker_that_hangs_is_cut_off_by_its_probes(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(2, policy="round_robin")

    async def silent(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    first = fleet.engines[0]
    first.script = silent
    tasks = [asyncio.create_task(fleet.ask(chat(f"{i}?"))) for i in range(6)]
    await until(lambda: first.running >= 2)
    first.health_gate = asyncio.Event()  # connections stay open, nothing answers any more
    answers = await asyncio.gather(*tasks)
    assert all(status == 200 for status, _, _ in answers)
    await until(fleet.idle)


async def test_a_worker_comes_back_under_its_own_name_with_an_empty_tree(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)
    (engine,) = fleet.engines
    await fleet.ask()
    await until(lambda: fleet.slot(engine.id).blocks > 0)
    port = engine.port
    await engine.stop()
    await until(lambda: fleet.core.workers(0.0)[0].health == "down")
    assert fleet.slot(engine.id).blocks == 0
    status, body, _ = await fleet.ask()
    assert status == 503
    assert "no worker can take this request now" in body["error"]["message"]
    assert (await fleet.get("/ready"))[0] == 503
    await engine.start(port)
    await until(lambda: fleet.live(engine.id))
    status, body, _ = await fleet.ask()
    assert (status, body["usage"]["prompt_tokens_details"]["cached_tokens"]) == (200, 0)
    await until(lambda: fleet.slot(engine.id).blocks > 0)


async def test_a_client_that_leaves_frees_the_engine_at_once(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)
    (engine,) = fleet.engines

    async def silent(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body.get("stream"):
            await (await begin_stream(request)).write(chunk("one"))
        await asyncio.Event().wait()
        raise AssertionError

    engine.script = silent
    for stream in (False, True):
        leaving = asyncio.create_task(fleet.ask(chat(stream=stream)))
        await until(lambda: engine.running == 1)
        leaving.cancel()
        await until(fleet.idle)
    _, body = await fleet.get("/decisions")
    assert [d["finish"]["outcome"] for d in body["decisions"]] == ["client_gone", "client_gone"]


async def test_nobody_there(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(0)
    status, body, _ = await fleet.ask()
    assert (status, body["error"]["message"]) == (503, "no worker is ready: the router has no workers")
    async with fleet.post("/workers", {"url": "http://127.0.0.1:9"}) as response:
        assert response.status == 201
    await until(lambda: fleet.core.workers(0.0)[0].health == "down")
    async with fleet.post() as response:
        assert (response.status, response.headers["retry-after"]) == (503, "1")


# Operation


async def test_workers_come_and_go(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(2, policy="round_robin")
    leaving = fleet.engines[0]
    gate = asyncio.Event()

    async def slow(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await gate.wait()
        return await answer(engine, request, body)

    leaving.script = slow
    tasks = [asyncio.create_task(fleet.ask(chat(f"{i}?"))) for i in range(4)]
    await until(lambda: leaving.running > 0)
    async with fleet.client.delete(f"{fleet.router.url}/workers/{leaving.id}") as response:
        assert (response.status, (await response.json())["in_flight"]) == (202, leaving.running)
    gate.set()
    assert {status for status, _, _ in await asyncio.gather(*tasks)} == {200}
    await until(lambda: [report.id for report in fleet.core.workers(0.0)] == [fleet.engines[1].id])
    async with fleet.client.delete(f"{fleet.router.url}/workers/{leaving.id}") as response:
        assert response.status == 404


async def test_the_tree_of_a_worker(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)
    worker = fleet.engines[0].id
    await fleet.ask(chat("a" * 40))
    await fleet.ask(chat("b" * 40))
    await until(lambda: fleet.slot(worker).blocks == len(fleet.engines[0].cached))
    _, body = await fleet.get(f"/workers/{worker}/tree")
    root, *branches = body["slots"][worker]["edges"]
    assert root["parent"] is None
    assert [edge["parent"] for edge in branches] == [root["first"]] * 2
    status, body = await fleet.get("/workers/nobody/tree")
    assert (status, body["error"]["type"]) == (404, "not_found_error")


async def test_metrics_tell_what_happened(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(1)
    worker = fleet.engines[0].id
    await fleet.ask()
    await until(lambda: fleet.slot(worker).blocks > 0)
    await fleet.ask()
    async with fleet.client.get(fleet.router.url + "/metrics") as response:
        families = {family.name: family for family in text_string_to_metric_families(await response.text())}

    def value(family: str, name: str, **labels: str) -> float:
        return sum(
            s.value for s in families[family].samples if s.name == name and labels.items() <= dict(s.labels).items()
        )

    assert value("warmroute_requests", "warmroute_requests_total", slot=worker, outcome="ok") == 2
    predicted = value("warmroute_predicted_cached_tokens", "warmroute_predicted_cached_tokens_total", slot=worker)
    assert predicted == value("warmroute_reported_cached_tokens", "warmroute_reported_cached_tokens_total") > 0
    assert value("warmroute_matched_tokens", "warmroute_matched_tokens_sum") == predicted
    assert value("warmroute_slot_index_blocks", "warmroute_slot_index_blocks") == len(fleet.engines[0].cached)
    assert value("warmroute_slot_cache_state", "warmroute_slot_cache_state", state="live") == 1
    assert value("warmroute_worker_up", "warmroute_worker_up") == 1
    assert value("warmroute_in_flight", "warmroute_in_flight") == 0
    assert value("warmroute_kv_events", "warmroute_kv_events_total", kind="stored") == 1


async def test_models_and_health(make_fleet: MakeFleet) -> None:
    fleet = await make_fleet(2)
    _, body = await fleet.get("/v1/models")
    assert [(card["id"], card["max_model_len"]) for card in body["data"]] == [("tiny", 4096)]
    assert (await fleet.get("/health"))[0] == 200
    status, body = await fleet.get("/ready")
    assert (status, body["ready"], body["placed_by_load_only"]) == (200, True, {})


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v1/chat/completions", b"{", 400, "JSON"),
        ("/v1/chat/completions", b'{"model": "tiny"}', 400, "messages"),
        ("/v1/completions", b'{"model": "tiny", "prompt": 7}', 400, "prompt"),
        ("/v1/completions", b'{"model": "other", "prompt": "x"}', 404, "'other' does not exist here; models: tiny"),
        ("/nowhere", b"{}", 404, "there is nothing at /nowhere"),
        ("/health", b"{}", 405, "/health does not know POST; allowed: GET, HEAD"),
        ("/route", b"[]", 400, "JSON object"),
        ("/workers", b'{"uri": "http://a:1"}', 400, "uri='http://a:1' is not one of url, events, replay, topic"),
        ("/workers", b'{"url": "nonsense"}', 400, "http://HOST:PORT"),
        ("/workers", b'{"url": "http://a:1", "events": "b:1"}', 400, "must be tcp://HOST:PORT or ipc://PATH"),
        ("/v1/chat/completions", b"x" * (2 << 20), 413, "at most 1048576 bytes"),
    ],
)
async def test_bad_requests_are_told_what_is_wrong(
    make_fleet: MakeFleet, path: str, body: bytes, status: int, message: str
) -> None:
    fleet = await make_fleet(1, max_body_mib=1)
    async with fleet.client.post(fleet.router.url + path, data=body) as response:
        error = (await response.json())["error"]
        assert response.status == status
        assert message in error["message"]
        assert set(error) == {"message", "type", "param", "code"}
    assert fleet.engines[0].received == []
    assert fleet.core.in_flight == 0


async def test_shutdown_ends_what_is_in_flight(make_fleet: MakeFleet, tokenizer_path: str) -> None:
    fleet = await make_fleet(1)

    async def silent(engine: Engine, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    fleet.engines[0].script = silent
    config = RouterConfig(
        worker=(WorkerSpec(fleet.engines[0].url),), port=0, tokenizer=tokenizer_path, drain_timeout_s=0.1
    )
    async with running(config) as other:
        await until(lambda: other.core.workers(0.0)[0].health == "up")
        pending = asyncio.create_task(fleet.client.post(other.url + "/v1/chat/completions", json=chat()))
        await until(lambda: other.core.in_flight == 1)
    with pytest.raises(aiohttp.ClientError):
        await pending
    ((_, finish),) = other.core.decisions(1)
    assert finish is not None
    assert finish.outcome == "shutdown"
