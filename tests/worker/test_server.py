"""The server's endpoints, its errors, and what happens when somebody leaves, over a real socket."""

import asyncio
import json
import socket
from typing import Any

import aiohttp
import pytest
from yarl import URL

from kv_events.deliveries import Batch, Synced
from kv_events.events import BlockStored
from kv_events.publisher import ZmqPublisher
from kv_events.sources import parse_event_sources
from kv_events.subscriber import Subscriber, Switchboard
from worker.server import bound_socket

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt": "x" * 600}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    ],
)
async def test_a_prompt_that_is_too_long_says_both_numbers(
    serve: Any, path: str, body: dict[str, Any], param: str, stream: bool
) -> None:
    async with serve(max_model_len=512) as worker:
        _, tokenized = await worker.post("/tokenize", **body)
        status, answer = await worker.post(path, **body, max_tokens=5, n=2, stream=stream)
        await worker.until_idle()
        async with worker.client.get("/metrics") as response:
            assert 'finished_reason="error",model_name="scripted"} 0.0' in await response.text()
    assert status == 400
    assert answer["error"]["param"] == param
    assert f" {tokenized['count']} tokens" in answer["error"]["message"]
    assert " 512 tokens" in answer["error"]["message"]


async def test_the_pool_is_a_limit_too(serve: Any) -> None:
    async with serve(blocks=3) as worker:
        status, answer = await worker.post(COMPLETIONS, prompt="x" * 60)
        _, models = await worker.post("/tokenize", prompt="x" * 60)
    assert status == 400
    assert "61 tokens" in answer["error"]["message"]
    assert "KV cache pool is 48 tokens" in answer["error"]["message"]
    assert models["max_model_len"] == 48


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x" * 30, "max_tokens": 3}, "max_tokens"),
        ({"prompt": [5, 1_000_000]}, "prompt"),
        ({"prompt": "x", "temperature": 9}, "temperature"),
        ({"prompt": "x", "presence_penalty": 1}, "presence_penalty"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x", "stream": "yes"}, "stream"),
    ],
)
async def test_bad_requests_name_what_is_wrong(serve: Any, body: dict[str, Any], param: str) -> None:
    async with serve(max_model_len=32) as worker:
        status, answer = await worker.post(COMPLETIONS, **body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", CHAT, b"{", 400, "not valid JSON"),
        ("POST", CHAT, b'{"model": "other", "messages": [{"role": "user", "content": "x"}]}', 404, "'scripted' is"),
        ("GET", "/v1/nonsense", b"", 404, "nothing at /v1/nonsense"),
        ("GET", CHAT, b"", 405, "allowed: POST"),
        ("POST", "/health", b"", 405, "allowed: GET, HEAD"),
        ("POST", "/tokenize", b'{"prompt": [1, 2]}', 400, "'prompt' must be one text"),
        ("POST", "/tokenize", b"{}", 400, "'prompt' must be"),
    ],
)
async def test_every_error_is_openais_object(
    serve: Any, method: str, path: str, body: bytes, status: int, says: str
) -> None:
    async with serve() as worker, worker.client.request(method, path, data=body) as response:
        answer = await response.json()
        assert response.status == status
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert says in answer["error"]["message"]


async def test_model_not_found_has_openais_code(serve: Any) -> None:
    async with serve() as worker:
        _, answer = await worker.post(CHAT, model="other", messages=HELLO)
    assert answer["error"]["code"] == "model_not_found"


async def test_a_body_over_the_bound_is_refused(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.server.MAX_BODY_BYTES", 1000)
    async with serve() as worker:
        status, answer = await worker.post(COMPLETIONS, prompt="x" * 1001)
    assert status == 413
    assert "1000 bytes" in answer["error"]["message"]


async def test_a_full_engine_says_when_to_come_again(serve: Any) -> None:
    async with serve(max_sequences=2) as worker:
        async with worker.client.post(COMPLETIONS, json={"prompt": "x", "n": 3}) as response:
            assert response.status == 429
            assert response.headers["Retry-After"] == "1"
        status, _ = await worker.post(COMPLETIONS, prompt="x", n=2)
    assert status == 200


async def test_models_card(serve: Any) -> None:
    async with serve() as worker, worker.client.get("/v1/models") as response:
        answer = await response.json()
    assert answer == {
        "object": "list",
        "data": [
            {
                "id": "scripted",
                "object": "model",
                "created": 1_700_000_000,
                "owned_by": "warmroute",
                "root": "/models/scripted",
                "parent": None,
                "max_model_len": 512,
            }
        ],
    }


async def test_tokenize(serve: Any) -> None:
    async with serve() as worker:
        _, text = await worker.post("/tokenize", model="scripted", prompt="ab", return_token_strs=True)
        _, chat = await worker.post("/tokenize", messages=HELLO)
    ids = worker.tokenizer.encode("ab")
    assert text == {"count": 3, "max_model_len": 512, "tokens": ids, "token_strs": ["<s>", "a", "b"]}
    expected = worker.tokenizer.apply_chat_template(HELLO, add_generation_prompt=True, return_dict=False)
    assert chat["tokens"] == expected
    assert chat["token_strs"] is None


async def test_render_says_what_the_engine_would_see(serve: Any) -> None:
    prompts = ["ab", "abc"]
    async with serve() as worker:
        _, chat = await worker.post(CHAT + "/render", model="scripted", messages=HELLO, max_tokens=5)
        _, texts = await worker.post(COMPLETIONS + "/render", prompt=prompts)
        status, answer = await worker.post(COMPLETIONS + "/render", model="other", prompt="ab")
    expected = worker.tokenizer.apply_chat_template(HELLO, add_generation_prompt=True, return_dict=False)
    assert (chat["model"], chat["token_ids"]) == ("scripted", expected)
    assert chat["request_id"].startswith("chatcmpl-")
    assert [text["token_ids"] for text in texts] == [worker.tokenizer.encode(prompt) for prompt in prompts]
    assert texts[0]["request_id"].startswith("cmpl-")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_long_prompts_are_tokenized_beside_the_loop_with_the_same_result(serve: Any) -> None:
    text = "0123456789" * 2000
    async with serve() as worker:
        _, answer = await worker.post("/tokenize", prompt=text)
    assert answer["tokens"] == worker.tokenizer.encode(text)


async def test_subscribers_find_and_see_the_blocks(serve: Any) -> None:
    prompt = list(range(10, 50))
    seen: asyncio.Queue[Any] = asyncio.Queue()
    async with serve(publisher=ZmqPublisher("tcp://*:0", "tcp://*:0")) as worker:
        await worker.post(COMPLETIONS, prompt=prompt, max_tokens=1)  # before anybody listens: the replay has it
        async with worker.client.get("/kv_event_sources") as response:
            (source,) = parse_event_sources(await response.json(), "127.0.0.1")
        switchboard = Switchboard()
        subscriber = Subscriber(source, seen.put_nowait, switchboard)
        subscriber.start()
        async with asyncio.timeout(20):
            deliveries = [await seen.get()]
            while not isinstance(deliveries[-1], Synced):
                deliveries.append(await seen.get())
        await subscriber.close()
        await switchboard.close()
    stored = [event for each in deliveries if isinstance(each, Batch) for event in each.batch.events]
    assert all(isinstance(event, BlockStored) for event in stored)
    assert [token for event in stored for token in event.token_ids] == prompt[:32]


async def test_kv_event_sources_without_events(serve: Any) -> None:
    async with serve() as worker, worker.client.get("/kv_event_sources") as response:
        assert (await response.json())["0"]["enable_kv_cache_events"] is False


async def test_reset_prefix_cache(serve: Any) -> None:
    async with serve() as worker:
        await worker.post(COMPLETIONS, prompt="x" * 20)
        assert await worker.post("/reset_prefix_cache") == (200, {"success": True})
        _, answer = await worker.post(COMPLETIONS, prompt="x" * 20)
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_during_prefill_leaves_nothing_behind(serve: Any, stream: bool) -> None:
    async with serve() as worker:
        worker.runner.hold()
        request = asyncio.create_task(worker.post(COMPLETIONS, prompt="x", max_tokens=400, stream=stream))
        await worker.until_held()
        request.cancel()
        await worker.until_forgotten()
        worker.runner.gate.set()
        await worker.until_idle()
        assert (await worker.post(COMPLETIONS, prompt="x"))[0] == 200


async def test_a_client_that_leaves_a_stream_leaves_nothing_behind(serve: Any) -> None:
    async with serve("a" * 400) as worker:
        worker.runner.hold(from_token=3)
        request = worker.client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 400, "n": 4, "stream": True})
        async with request as response:
            await response.content.readany()
            await worker.until_held()
            response.close()
        await worker.until_forgotten()
        worker.runner.gate.set()
        await worker.until_idle()
        assert worker.engine.stats.generated_tokens < 4 * 10


async def test_a_failing_step_is_a_500_and_the_worker_lives_on(serve: Any) -> None:
    async with serve() as worker:
        worker.runner.failure = RuntimeError("out of memory")
        status, answer = await worker.post(COMPLETIONS, prompt="x")
        assert (status, answer["error"]["type"]) == (500, "server_error")
        assert "out of memory" in answer["error"]["message"]
        worker.runner.failure = None
        assert (await worker.post(COMPLETIONS, prompt="x"))[0] == 200


async def test_a_failure_in_mid_stream_is_an_error_event(serve: Any) -> None:
    async with serve("a" * 400) as worker:
        worker.runner.hold(from_token=3)
        request = worker.client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 400, "stream": True})
        async with request as response:
            await worker.until_held()
            worker.runner.failure = RuntimeError("out of memory")
            worker.runner.gate.set()
            *_, error, done, _ = (await response.text()).split("\n\n")
    assert "out of memory" in json.loads(error.removeprefix("data: "))["error"]["message"]
    assert done == "data: [DONE]"


async def test_health_is_about_the_engine(serve: Any) -> None:
    async with serve() as worker, worker.client.get("/health") as response:
        assert (response.status, await response.read()) == (200, b"")


async def test_a_port_is_free_as_soon_as_its_worker_has_ended(serve: Any) -> None:
    async with aiohttp.ClientSession() as client:
        async with serve() as worker:
            port = URL(worker.url).port
            await (await client.get(worker.url + "/health")).read()
        bound_socket("127.0.0.1", port).close()


async def test_two_workers_cannot_have_one_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="cannot listen on"):
        bound_socket("127.0.0.1", taken.getsockname()[1])
