"""The measuring client against a scripted server on a real socket."""

import asyncio

import pytest
from aiohttp import web

from protocol.sse import Usage
from replay.client import ChatClient
from replay.errors import RequestFailed

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


class SteppedClock:
    """Stands at 10 s until told; says when it has been read `count` times."""

    def __init__(self, count: int) -> None:
        self.now_s, self._left, self.reached = 10.0, count, asyncio.Event()

    def __call__(self) -> float:
        self._left -= 1
        if self._left == 0:
            self.reached.set()
        return self.now_s


async def test_reads_text_usage_and_headers(engine, session):
    answer = await ChatClient(session, engine.url).chat(HELLO)
    assert answer.text == "Hello, you"
    assert answer.usage == Usage(prompt_tokens=70, completion_tokens=2, cached_tokens=64)
    assert (answer.worker, answer.predicted_cached_tokens) == ("w-1", 48)
    assert 0 < answer.ttft_ms <= answer.duration_ms


async def test_asks_for_a_stream_with_usage_and_keeps_the_fields(engine, session):
    await ChatClient(session, engine.url).chat(HELLO)
    assert engine.bodies == [{**HELLO, "stream": True, "stream_options": {"include_usage": True}}]


async def test_first_token_is_the_first_text_not_the_first_byte(engine, session):
    """The role chunk comes first, at 10 s; text only once the client has read that, at 12.5 s; the end at 15 s."""
    clock = SteppedClock(count=2)  # sending, role chunk

    async def role_then_text(request: web.Request) -> web.StreamResponse:
        response = await engine.start(request)
        await response.write(engine.event(None))
        await clock.reached.wait()
        clock.now_s = 12.5
        await response.write(engine.event("now"))
        await texts_read.wait()
        clock.now_s = 15.0
        await response.write(engine.usage() + b"data: [DONE]\n\n")
        return response

    texts_read = asyncio.Event()

    def watched() -> float:
        now_s = clock()
        if now_s == 12.5:
            texts_read.set()
        return now_s

    engine.handler = role_then_text
    answer = await ChatClient(session, engine.url, watched).chat(HELLO)
    assert (answer.sent_at_s, answer.ttft_ms, answer.duration_ms) == (10.0, 2500.0, 5000.0)


async def test_an_answer_without_text_has_its_first_token_at_its_end(engine, session):
    engine.reply = lambda body: []
    answer = await ChatClient(session, engine.url).chat(HELLO)
    assert answer.text == ""
    assert answer.ttft_ms == answer.duration_ms


async def test_events_cut_anywhere_give_the_same_answer(engine, session):
    async def byte_by_byte(request: web.Request) -> web.StreamResponse:
        response = await engine.start(request)
        for byte in engine.event("h\u00e4user") + engine.event(" \U0001f680") + engine.usage() + b"data: [DONE]\n\n":
            await response.write(bytes([byte]))
        return response

    engine.handler = byte_by_byte
    assert (await ChatClient(session, engine.url).chat(HELLO)).text == "h\u00e4user \U0001f680"


async def test_behind_a_plain_engine_there_is_no_prediction(engine, session):
    async def plain(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(engine.event("x") + engine.usage() + b"data: [DONE]\n\n")
        return response

    engine.handler = plain
    answer = await ChatClient(session, engine.url).chat(HELLO)
    assert (answer.worker, answer.predicted_cached_tokens) == (None, None)


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        (b"", r"without \[DONE\]"),
        (b"data: [DONE]\n\n", "without its usage"),
        (b'data: {"error": {"message": "worker w-1 failed"}}\n\n', "broke off: worker w-1 failed"),
        (b"data: {broken\n\n", "not JSON"),
    ],
)
async def test_an_incomplete_answer_is_a_failure_that_says_why(engine, session, tail, says):
    async def incomplete(request: web.Request) -> web.StreamResponse:
        response = await engine.start(request)
        await response.write(engine.event("Hel") + tail)
        return response

    engine.handler = incomplete
    with pytest.raises(RequestFailed, match=says):
        await ChatClient(session, engine.url).chat(HELLO)


async def test_a_refusal_is_a_failure_with_status_and_body(engine, session):
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "max_tokens must be positive"}}, status=400)

    engine.handler = refuse
    with pytest.raises(RequestFailed, match=r"answered 400: .*max_tokens must be positive"):
        await ChatClient(session, engine.url).chat(HELLO)


async def test_a_connection_cut_in_the_middle_is_a_failure(engine, session):
    async def cut(request: web.Request) -> web.StreamResponse:
        response = await engine.start(request)
        await response.write(engine.event("Hel"))
        request.transport.abort()
        return response

    engine.handler = cut
    with pytest.raises(RequestFailed, match=engine.url):
        await ChatClient(session, engine.url).chat(HELLO)


async def test_nobody_listening_is_a_failure(session, unused_tcp_port):
    with pytest.raises(RequestFailed, match=f"127.0.0.1:{unused_tcp_port}"):
        await ChatClient(session, f"http://127.0.0.1:{unused_tcp_port}").chat(HELLO)
