"""The whole router over real sockets: placement, operation. HTTP in front, scripted engines behind, ZeroMQ between."""

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families
from transformers import PreTrainedTokenizerFast

from protocol.prompts import PromptEncoder
from router.app import running
from router.config import RouterConfig, WorkerSpec
from tests.router.conftest import MakeFleet
from tests.router.engine import SIZE, Engine, answer, engine_running
from tests.router.fleet import SYSTEM, chat, until

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


async def test_without_a_tokenizer_text_decides_and_the_decision_says_so(make_fleet: MakeFleet, tmp_path: Path) -> None:
    fleet = await make_fleet(3, tokenizer=str(tmp_path / "nowhere"))
    conversation = chat("Which way? " * 200)
    status, _, home = await fleet.ask(conversation)
    assert status == 200
    for _ in range(4):
        await fleet.ask(chat("Something else. " * 200))
    said = {"role": "assistant", "content": "That way."}
    conversation["messages"] += [said, {"role": "user", "content": "And back?"}]
    assert (await fleet.ask(conversation))[2] == home
    _, body = await fleet.get("/decisions")
    decision = body["decisions"][0]
    assert "no tokenizer" in decision["unknown_prompt"]
    assert decision["predicted_cached_tokens"] > decision["prompt_tokens"] / 2
    _, ready = await fleet.get("/ready")
    assert "nowhere" in ready["placed_by_text"]["tiny"]


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
    await until(lambda: [report.id for report in fleet.core.workers(monotonic())] == [fleet.engines[1].id])
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
    assert (status, body["ready"], body["placed_by_text"]) == (200, True, {})


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
        await until(lambda: other.core.workers(monotonic())[0].health == "up")
        pending = asyncio.create_task(fleet.client.post(other.url + "/v1/chat/completions", json=chat()))
        await until(lambda: other.core.in_flight == 1)
    with pytest.raises(aiohttp.ClientError):
        await pending
    ((_, finish),) = other.core.decisions(1)
    assert finish is not None
    assert finish.outcome == "shutdown"
