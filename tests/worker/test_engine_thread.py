"""The engine's thread: requests end, whatever happens to the client, the engine or the worker."""

import asyncio
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest

from protocol.errors import InternalError, Overloaded, Unavailable
from worker.engine import BadPrompt
from worker.engine_thread import OutputStream
from worker.request import EngineRequest, FinishReason, SamplingParams, TokenOutput

COMPLETIONS = "/v1/completions"


def request(name: str, prompt: tuple[int, ...] = (5, 6, 7), max_tokens: int = 4) -> EngineRequest:
    return EngineRequest(name, prompt, SamplingParams(max_tokens=max_tokens, temperature=0))


async def read(stream: OutputStream) -> dict[str, list[int | None]]:
    """Token ids by request; every request must end."""
    tokens: dict[str, list[int | None]] = {}
    async with asyncio.timeout(20):
        async for output in stream:
            tokens.setdefault(output.request_id, []).append(output.token_id)
    assert not stream.running
    return tokens


async def test_streams_carry_their_own_sequences_only(serve: Any) -> None:
    async with serve("abcdef") as worker:
        said = worker.runner.script
        streams = (
            worker.engine.generate([request("a"), request("b", max_tokens=2)]),
            worker.engine.generate([request("c")]),
        )
        both, one = await asyncio.gather(*map(read, streams))
    assert both == {"a": said[:4], "b": said[:2]}
    assert one == {"c": said[:4]}


async def test_the_last_output_tells_why_it_ended(serve: Any) -> None:
    async with serve("ab") as worker:
        outputs = [output async for output in worker.engine.generate([request("a")])]
    assert [output.finish_reason for output in outputs] == [None, None, FinishReason.STOP]


async def test_an_aborted_sequence_says_nothing_more(serve: Any) -> None:
    async with serve("a" * 50) as worker:
        worker.runner.hold(from_token=1)
        stream = worker.engine.generate([request("a", max_tokens=50), request("b", max_tokens=3)])
        await anext(stream)
        await worker.until_held()
        stream.abort("a")
        worker.runner.gate.set()
        rest = await read(stream)
        await worker.until_idle()
    assert "a" not in rest
    assert worker.engine.stats.generated_tokens < 20


async def test_outputs_that_wait_when_their_sequence_is_aborted_are_dropped() -> None:
    stream = OutputStream(Mock(), ["a", "b"])
    for name in "aba":
        stream.put(TokenOutput(name, 5, cached_tokens=0))
    stream.put(TokenOutput("b", 6, cached_tokens=0, finish_reason=FinishReason.STOP))
    stream.abort("a")
    assert await read(stream) == {"b": [5, 6]}


async def test_aborting_what_has_ended_does_nothing(serve: Any) -> None:
    async with serve("ab") as worker:
        stream = worker.engine.generate([request("a")])
        await read(stream)
        stream.abort("a")
        assert await read(worker.engine.generate([request("a")]))  # the id is free again


async def test_a_prompt_that_the_engine_refuses_fails_its_reader_only(serve: Any) -> None:
    async with serve("ab") as worker:
        good = worker.engine.generate([request("good")])
        bad = worker.engine.generate([request("bad", prompt=(10**9,))])
        with pytest.raises(BadPrompt, match="vocabulary"):
            await read(bad)
        assert len((await read(good))["good"]) == 3


async def test_no_more_sequences_than_it_takes(serve: Any) -> None:
    async with serve(max_sequences=2) as worker:
        worker.runner.hold()
        stream = worker.engine.generate([request("a")])
        with pytest.raises(Overloaded, match="1 sequences are in the engine, which takes 2"):
            worker.engine.generate([request("b"), request("c")])
        worker.runner.gate.set()
        await read(stream)
        assert await read(worker.engine.generate([request("b"), request("c")]))


async def test_reset_is_refused_while_a_sequence_runs(serve: Any) -> None:
    async with serve("a" * 10) as worker:
        worker.runner.hold(from_token=1)
        stream = worker.engine.generate([request("a", max_tokens=10)])
        await worker.until_held()
        reset = asyncio.create_task(worker.engine.reset_prefix_cache())
        await asyncio.sleep(0)  # the command is in the queue: it is obeyed before the next step
        worker.runner.gate.set()
        assert await reset is False
        await read(stream)
        assert await worker.engine.reset_prefix_cache() is True


async def test_a_dead_engine_fails_everybody_and_says_so(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve() as worker:
        worker.runner.hold()
        streams = [worker.engine.generate([request(name)]) for name in "ab"]
        await worker.until_held()
        reset = asyncio.create_task(worker.engine.reset_prefix_cache())
        await asyncio.sleep(0)
        monkeypatch.setattr("worker.engine.Engine.stats", lambda self: 1 / 0)
        worker.runner.gate.set()
        for stream in streams:
            with pytest.raises(InternalError, match="the engine is dead: ZeroDivisionError"):
                await read(stream)
        with pytest.raises(InternalError, match="dead"):
            await asyncio.wait_for(reset, 20)
        with pytest.raises(Unavailable, match="dead"):
            worker.engine.generate([request("c")])
        async with worker.client.get("/health") as response:
            assert response.status == 503
            assert "ZeroDivisionError" in (await response.json())["error"]["message"]
        assert (await worker.post(COMPLETIONS, prompt="x"))[0] == 503  # a gateway asks another worker
        assert worker.engine.sequences == 0


async def test_closing_lets_what_runs_finish(serve: Any) -> None:
    async with serve("abc") as worker:
        worker.runner.hold(from_token=1)
        stream = worker.engine.generate([request("a")])
        await worker.until_held()
        closing = asyncio.create_task(worker.engine.close(grace_s=20))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="shuts down"):
            worker.engine.generate([request("b")])
        worker.runner.gate.set()
        assert len((await read(stream))["a"]) == 4
        await closing


async def test_closing_fails_what_does_not_finish_in_time(serve: Any) -> None:
    async with serve("a" * 400) as worker:
        worker.runner.hold(from_token=1)
        stream = worker.engine.generate([request("a", max_tokens=400)])
        await worker.until_held()
        closing = asyncio.create_task(worker.engine.close(grace_s=0))
        with pytest.raises(Unavailable, match="shuts down"):
            await read(stream)
        worker.runner.gate.set()
        await closing


@pytest.mark.parametrize("grace_s", [0.0, 20.0])
async def test_leaving_the_server_answers_every_client(serve: Any, grace_s: float) -> None:
    async with aiohttp.ClientSession() as client:
        async with serve("hello", grace_s=grace_s) as worker:
            worker.runner.hold(from_token=1)
            url = worker.url + COMPLETIONS
            whole = asyncio.create_task(client.post(url, json={"prompt": "x"}))
            streamed = await client.post(url, json={"prompt": "y", "stream": True})
            await worker.until_held()
            opening = asyncio.create_task(worker.open_gate_when_closing())
        response, text, _ = await asyncio.gather(whole, streamed.text(), opening)
    assert text.endswith("data: [DONE]\n\n")
    if grace_s:
        assert (await response.json())["choices"][0]["text"] == "hello"
    else:
        assert response.status == 503
        assert "shuts down" in text
