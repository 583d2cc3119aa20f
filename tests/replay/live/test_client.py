"""What the load client sends, and what it makes of answers, against an engine on a real socket."""

import numpy as np
import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from protocol.sse import Usage, encode_event
from replay.errors import RequestFailed
from replay.live.api import Api
from replay.live.client import LoadClient, Reading
from replay.traces.trace import Chat


def chunk(**choice) -> bytes:
    return encode_event(orjson.dumps({"choices": [{"index": 0, **choice}], "usage": None}))


OPENING = chunk(delta={"role": "assistant", "content": ""})
END = encode_event(orjson.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}))
DONE = encode_event(b"[DONE]")
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}


def read(answer: bytes, *cuts: int) -> Reading:
    """In pieces that end at `cuts` and come at 0, 1, 2, ... s."""
    reading = Reading()
    ends = [*sorted(cuts), len(answer)]
    for time_s, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        reading.feed(answer[start:end], float(time_s))
    return reading


@pytest.mark.parametrize(
    ("api", "prompt", "fields"),
    [
        (Api.COMPLETIONS, np.array([5, 70_000], dtype=np.uint32), {"prompt": [5, 70_000]}),
        (Api.COMPLETIONS, "Once upon", {"prompt": "Once upon"}),
        (Api.CHAT, "Once upon", {"messages": [{"role": "user", "content": "Once upon"}]}),
        (Api.CHAT, Chat(({"role": "system", "content": "s"},)), {"messages": [{"role": "system", "content": "s"}]}),
        (Api.CHAT, Chat((USER,), (TOOL,)), {"messages": [USER], "tools": [TOOL]}),
    ],
)
def test_bodies_ask_for_a_stream_of_exactly_so_many_tokens(api, prompt, fields):
    client = LoadClient(None, "http://nowhere", api, "m")  # type: ignore[arg-type]  # a body needs no session
    assert orjson.loads(client.body(prompt, answer_tokens=7)) == {
        "model": "m",
        **fields,
        "max_tokens": 7,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.parametrize("api", Api)
async def test_an_answer_with_its_times_and_usage(fake, session, api):
    client = LoadClient(session, fake.url, api, "fake")
    before_s = client.clock_s()
    answer = await client.send(client.body("a b c", answer_tokens=4), session="s-1")
    assert answer.usage == Usage(10 if api is Api.CHAT else 3, 4, 0)
    assert before_s <= answer.first_token_s <= answer.ended_s <= client.clock_s()
    assert (answer.worker, answer.predicted_cached_tokens) == (None, None)
    assert fake.headers[0]["x-session-id"] == "s-1"
    await client.send(client.body("a b c", answer_tokens=4))
    assert "x-session-id" not in fake.headers[1]


async def test_what_our_router_says_in_headers(fake, session):
    async def routed(request: web.Request, body: dict) -> web.StreamResponse:
        headers = {"x-warmroute-worker": "w-1", "x-warmroute-cached-tokens": "48"}
        return web.Response(body=chunk(text="x") + END + DONE, content_type="text/event-stream", headers=headers)

    fake.handler = routed
    client = LoadClient(session, fake.url, Api.COMPLETIONS, "fake")
    answer = await client.send(client.body("a", 1))
    assert (answer.worker, answer.predicted_cached_tokens) == ("w-1", 48)


def test_the_first_token_is_no_opening_chunk_and_may_have_no_text():
    answer = [OPENING, chunk(delta={"content": ""}), chunk(delta={"content": "x"}), END, DONE]
    assert read(b"".join(answer), len(OPENING), len(OPENING + answer[1])).first_token_s == 1
    assert read(OPENING + chunk(delta={"content": ""}, finish_reason="length") + END + DONE).first_token_s is None


TOKENS = b"".join(chunk(text=f"t\u00e4{number}") for number in range(40))


@given(st.lists(st.integers(0, 10_000), max_size=30), st.integers(1, 40))
def test_pieces_cut_anywhere_give_the_same_answer(cuts, repeats):
    answer = TOKENS * repeats + END + DONE
    first_bytes = len(chunk(text="t\u00e40"))
    inside = sorted(cut % len(answer) for cut in cuts)
    reading = read(answer, *inside)
    assert reading.usage() == Usage(9, 3, None)
    assert reading.first_token_s == sum(cut < first_bytes for cut in inside)


def test_the_last_usage_counts_where_every_event_has_one():
    running = encode_event(b'{"choices": [{"text": "x"}], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}')
    assert read(running * 500 + END + DONE).usage() == Usage(9, 3, None)


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        (END, r"without \[DONE\]"),
        (DONE, "without its usage"),
        (encode_event(b'{"error": {"message": "w-1 failed"}}'), "broke off: w-1 failed"),
        (encode_event(b'{"error": {"message": "w-1 failed"}}') + DONE, "broke off: w-1 failed"),
        (encode_event(b"{broken"), "not JSON"),
    ],
)
def test_an_answer_that_is_not_whole_is_a_failure_that_says_why(tail, says):
    with pytest.raises(RequestFailed, match=says):
        read(TOKENS * 30 + tail).usage()


async def test_a_refusal_has_a_status(fake, session):
    fake.vocab_size = 10
    client = LoadClient(session, fake.url, Api.COMPLETIONS, "fake")
    with pytest.raises(RequestFailed, match="answered 400: token ids go to 9") as caught:
        await client.send(client.body(np.array([10], dtype=np.uint32), 1))
    assert caught.value.status == 400
