"""Sending a trace to an engine on a real socket: in time, in order, and with the sharing that the trace has."""

import asyncio
from collections import Counter
from itertools import pairwise

import pytest
from aiohttp import web

from replay.arrivals import LoadSpec
from replay.errors import RequestFailed
from replay.live.api import Api
from replay.live.client import LoadClient, TimedAnswer
from replay.live.prompts import make_prompts
from replay.live.report import live_report
from replay.live.run import LOOKAHEAD, LiveRun
from replay.traces.ideal import ideal_hit_ratio

VOCABULARY = range(1000, 32_000)
WAIT_S = 30


def count_prompt(request) -> str:
    return f"request {request.hash_ids[0]}"


async def run(fake, session, trace, load=LoadSpec(), prompt_of=count_prompt):  # noqa: B008 - frozen
    ended = []
    client = LoadClient(session, fake.url, Api.COMPLETIONS, "fake")
    async with asyncio.timeout(WAIT_S):
        sent = await LiveRun(trace, load, client, prompt_of, on_ended=lambda: ended.append(1)).run()
    assert len(ended) == len(sent) == len(trace.requests)
    return sent


def numbers(fake) -> list[int]:
    return [int(body["prompt"].split()[1]) for body in fake.bodies]


async def test_an_open_loop_waits_for_no_answer(fake, session, make_trace):
    """The first answer comes when all requests are there: a client that waited for it would wait for ever."""
    all_there = asyncio.Event()

    async def held(request: web.Request, body: dict) -> web.StreamResponse:
        if len(fake.bodies) == 20:
            all_there.set()
        await all_there.wait()
        return await fake.answer(request, body)

    fake.handler = held
    rows = [{"input_tokens": 3, "arrival_s": n / 100, "hash_ids": (n,), "session": "s"} for n in range(20)]
    sent = await run(fake, session, make_trace(rows))
    assert sorted(numbers(fake)) == list(range(20))
    for each in sent:
        assert each.due_s == each.request.arrival_s
        assert each.due_s <= each.sent_s <= each.answer.first_token_s <= each.answer.ended_s


async def test_speedup_divides_times(fake, session, make_trace):
    rows = [{"input_tokens": 3, "arrival_s": n * 1000.0, "hash_ids": (n,)} for n in range(3)]
    sent = await run(fake, session, make_trace(rows), LoadSpec(speedup=1e5))
    assert sorted(each.due_s for each in sent) == pytest.approx([0, 0.01, 0.02])


async def test_in_a_closed_loop_a_turn_waits_for_the_answer_before(fake, session, make_trace):
    under_way, most = Counter(), Counter()

    async def watched(request: web.Request, body: dict) -> web.StreamResponse:
        name = request.headers["x-session-id"]
        under_way[name] += 1
        most[name] = max(most[name], under_way[name])
        await asyncio.sleep(0)
        under_way[name] -= 1
        return await fake.answer(request, body)

    fake.handler = watched
    rows = [{"input_tokens": 3, "hash_ids": (n,), "session": "ab"[n % 2], "turn": n // 2} for n in range(10)]
    sent = await run(fake, session, make_trace(rows), LoadSpec(closed_loop=True))
    assert most == {"a": 1, "b": 1}
    for name in "ab":
        turns = [each for each in sent if each.request.session == name]
        assert [each.request.turn for each in turns] == list(range(5))
        for before, after in pairwise(turns):
            assert before.answer.ended_s <= after.due_s <= after.sent_s


async def test_as_many_in_flight_as_allowed_and_no_more(fake, session, make_trace):
    """Answers come when three requests are there."""
    under_way, most, three = 0, 0, asyncio.Barrier(3)

    async def watched(request: web.Request, body: dict) -> web.StreamResponse:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await three.wait()
        under_way -= 1
        return await fake.answer(request, body)

    fake.handler = watched
    rows = [{"input_tokens": 3, "hash_ids": (n,)} for n in range(30)]
    await run(fake, session, make_trace(rows), LoadSpec(concurrency=3))
    assert most == 3


async def test_answers_have_the_length_that_the_trace_says(fake, session, make_trace):
    trace = make_trace([{"input_tokens": 3, "output_tokens": n, "hash_ids": (n,)} for n in range(4)])
    sent = await run(fake, session, trace)
    lengths = {each.request.output_tokens: each.answer.usage.completion_tokens for each in sent}
    assert lengths == {0: 1, 1: 1, 2: 2, 3: 3}


async def test_a_failure_ends_its_request_and_no_other(fake, session, make_trace):
    async def moody(request: web.Request, body: dict) -> web.StreamResponse:
        number = int(body["prompt"].split()[1])
        if number == 1:
            return fake.refuse("no", status=503)
        if number == 2:
            request.transport.abort()
        return await fake.answer(request, body)

    fake.handler = moody
    rows = [{"input_tokens": 3, "hash_ids": (n,), "session": "s", "turn": n} for n in range(4)]
    sent = await run(fake, session, make_trace(rows), LoadSpec(closed_loop=True))
    kinds = [type(each.answer) for each in sent]
    assert kinds == [TimedAnswer, RequestFailed, RequestFailed, TimedAnswer]
    assert sent[1].answer.status == 503


@pytest.mark.parametrize("api", Api)
async def test_an_engine_finds_the_sharing_that_the_trace_has(fake, session, make_trace, api):
    """One engine that forgets nothing, asked one after the other: its hit ratio is the trace's own."""
    rows = []
    for n in range(60):
        names = (*range(n % 5 * 100, n % 5 * 100 + 2 + n % 7), 1000 + n)
        rows.append({"input_tokens": len(names) * 32 - 9, "hash_ids": names, "arrival_s": n / 1000})
    trace = make_trace(rows)
    client = LoadClient(session, fake.url, api, "fake")
    prompt_of = await make_prompts(trace, client, VOCABULARY, seed=1)
    sent = await LiveRun(trace, LoadSpec(concurrency=1), client, prompt_of).run()
    report = live_report(sent, {})
    assert report.tokens.input == trace.input_tokens + (7 * 60 if api is Api.CHAT else 0)
    assert report.hit_ratio == pytest.approx(ideal_hit_ratio(trace), abs=0.05 if api is Api.CHAT else 1e-9)


async def test_bodies_are_made_ahead_of_their_time_but_not_all(fake, session, make_trace, eventually):
    made = []

    def prompt_of(request) -> str:
        made.append(request)
        return count_prompt(request)

    rows = [{"input_tokens": 3, "hash_ids": (n,), "arrival_s": 1e6 * bool(n)} for n in range(500)]
    client = LoadClient(session, fake.url, Api.COMPLETIONS, "fake")
    replay = asyncio.create_task(LiveRun(make_trace(rows), LoadSpec(), client, prompt_of).run())
    await eventually(lambda: numbers(fake) == [0] and len(made) == 1 + LOOKAHEAD)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(made) == 1 + LOOKAHEAD
    replay.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replay
