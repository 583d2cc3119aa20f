"""The users' side of the demo against a scripted engine: what is sent, in which order, and what that allows."""

import asyncio
from collections import Counter

import orjson
import pytest
from aiohttp import web

from protocol.sse import Usage
from replay.client import Answer, ChatClient
from replay.demo.run import Exchange, caches_are_known, converse, largest_hit_ratio, outputs_of
from replay.demo.workload import Conversation, Workload, token_ids
from replay.errors import RequestFailed

WORKLOAD = Workload(
    conversations=(
        Conversation("Be brief.", ("a1", "a2", "a3")),
        Conversation("Be brief.", ("b1", "b2")),
        Conversation("Be kind.", ("c1", "c2")),
    ),
    block_size=4,
    cache_share=0.5,
    answer_tokens=5,
    stagger_s=0,
    pause=(0, 0),
    seed=0,
    warm_up="hello",
)


def fields(messages):
    return {"model": "m", "messages": messages}


def last_said(body: dict) -> str:
    return body["messages"][-1]["content"]


async def run(engine, session, workload=WORKLOAD):
    answered = []
    exchanges = await converse(ChatClient(session, engine.url), workload, fields, lambda: answered.append(1))
    assert len(answered) == len(exchanges)
    return exchanges


async def test_each_turn_carries_the_answers_of_this_run(engine, session):
    engine.reply = lambda body: ["re: ", last_said(body)]
    exchanges = await run(engine, session)
    [last] = [each for each in exchanges if (each.conversation, each.turn) == (0, 2)]
    assert last.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a1"},
        {"role": "assistant", "content": "re: a1"},
        {"role": "user", "content": "a2"},
        {"role": "assistant", "content": "re: a2"},
        {"role": "user", "content": "a3"},
    ]
    assert last.answer.text == "re: a3"
    assert sorted(map(last_said, engine.bodies)) == ["a1", "a2", "a3", "b1", "b2", "c1", "c2"]


async def test_conversations_run_side_by_side_and_each_waits_for_its_answer(engine, session):
    """The first answers come only when all three users have asked: one after the other they never would."""
    in_flight, most = Counter(), Counter()
    all_asked = asyncio.Event()

    async def held(request: web.Request) -> web.StreamResponse:
        user = last_said(engine.bodies[-1])[0]
        in_flight[user] += 1
        most[user] = max(most[user], in_flight[user])
        if in_flight.total() == 3:
            all_asked.set()
        await all_asked.wait()
        response = await engine.start(request)
        in_flight[user] -= 1
        await response.write(engine.event("ok") + engine.usage() + b"data: [DONE]\n\n")
        return response

    engine.handler = held
    async with asyncio.timeout(20):
        exchanges = await run(engine, session)
    assert most == {"a": 1, "b": 1, "c": 1}
    sent = [each.answer.sent_at_s for each in exchanges]
    assert sent == sorted(sent)
    turns_of_a = [each.turn for each in exchanges if each.conversation == 0]
    assert turns_of_a == [0, 1, 2]


async def test_a_failed_request_ends_all_conversations(engine, session):
    async def refuse_b(request: web.Request) -> web.StreamResponse:
        if last_said(engine.bodies[-1]) == "b2":
            return web.json_response({"error": {"message": "no room"}}, status=503)
        return await engine.stream(request)

    engine.handler = refuse_b
    with pytest.raises(RequestFailed, match=r"answered 503: .*no room"):
        await run(engine, session)


async def test_outputs_are_compared_by_conversation_and_turn(engine, session):
    engine.reply = lambda body: ["re: ", last_said(body)]
    first = outputs_of(await run(engine, session))
    assert outputs_of(await run(engine, session)) == first
    engine.reply = lambda body: ["re: ", last_said(body) if last_said(body) != "c2" else "other"]
    changed = outputs_of(await run(engine, session))
    assert {key for key in first if first[key] != changed[key]} == {(2, 1)}


def exchange(encoder, messages: list[dict], text: str, completion_tokens: int) -> Exchange:
    prompt_tokens = len(token_ids(encoder, messages))
    answer = Answer(text, Usage(prompt_tokens, completion_tokens, 0), 0.0, 1.0, 1.0, None, None)
    return Exchange(0, 0, messages, answer)


def test_largest_hit_ratio_counts_shared_prefixes_and_answers(encoder):
    """One byte is one token. The second prompt repeats the first (30 tokens) and its answer (10 tokens, of which 9
    were ever an input): 39 tokens are known, 9 blocks of 4."""
    asked = [{"role": "user", "content": "hello there"}]
    again = [*asked, {"role": "assistant", "content": "well, well"}, {"role": "user", "content": "and?"}]
    exchanges = [exchange(encoder, asked, "well, well", 10), exchange(encoder, again, "x", 1)]
    second = exchanges[1].answer.usage.prompt_tokens
    assert exchanges[0].answer.usage.prompt_tokens == 30
    assert largest_hit_ratio(exchanges, encoder, 4) == 36 / (30 + second)


def test_an_engine_that_counts_other_tokens_than_we_do_is_an_error(encoder):
    wrong = exchange(encoder, [{"role": "user", "content": "hello"}], "x", 1)
    answer = Answer("x", Usage(wrong.answer.usage.prompt_tokens + 1, 1, 0), 0.0, 1.0, 1.0, None, None)
    with pytest.raises(RequestFailed, match="counts 25 tokens in a prompt that has 24"):
        largest_hit_ratio([Exchange(0, 0, wrong.messages, answer)], encoder, 4)


@pytest.mark.parametrize(
    ("health", "states", "known"),
    [("up", ["live"], True), ("up", ["live", "syncing"], False), ("joining", [], False), ("down", ["live"], False)],
)
def test_a_router_is_ready_when_it_follows_every_worker(health, states, known):
    first = {"id": "a", "health": "up", "slots": [{"cache_state": "live"}]}
    second = {"id": "b", "health": health, "slots": [{"cache_state": state} for state in states]}
    assert caches_are_known(orjson.dumps({"workers": [first, second]})) is known
