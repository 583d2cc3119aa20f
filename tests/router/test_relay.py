"""The relay over real sockets: what passes, what fails, who is asked next."""

import asyncio
import json
from time import monotonic
from typing import Any

from aiohttp import web

from protocol.sse import EventReader
from tests.router.conftest import MakeFleet
from tests.router.engine import Engine, begin_stream, chunk
from tests.router.fleet import chat, until

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
    assert all(report.health == "up" for report in fleet.core.workers(monotonic()))


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
    assert all(report.health == "up" for report in fleet.core.workers(monotonic()))
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
    await until(lambda: any(report.health == "down" for report in fleet.core.workers(monotonic())))
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
    await until(lambda: fleet.core.workers(monotonic())[0].health == "down")
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
    await until(lambda: fleet.core.workers(monotonic())[0].health == "down")
    async with fleet.post() as response:
        assert (response.status, response.headers["retry-after"]) == (503, "1")
