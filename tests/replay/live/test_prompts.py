"""Prompts for whatever a trace holds, and endpoints that take none of them."""

from dataclasses import replace

import numpy as np
import pytest
from aiohttp import web

from replay.errors import UnusableEndpoint
from replay.live.api import Api
from replay.live.client import LoadClient
from replay.live.prompts import make_prompts
from replay.traces.trace import Chat, Trace

VOCABULARY = range(1000, 32_000)
CHAT = Chat(({"role": "user", "content": "hello"},))


@pytest.fixture
def trace(make_trace) -> Trace:
    return make_trace(
        [
            {"input_tokens": 100, "hash_ids": (1, 2, 3, 4)},
            {"input_tokens": 90, "hash_ids": (1, 2, 5)},
            {"input_tokens": 11, "prompt": "as it is"},
        ]
    )


async def test_token_ids_for_completions(fake, session, trace):
    client = LoadClient(session, fake.url, Api.COMPLETIONS, "fake")
    prompt_of = await make_prompts(trace, client, VOCABULARY, seed=3)
    one, other, text = map(prompt_of, trace.requests)
    assert (len(one), len(other), text) == (100, 90, "as it is")
    assert (one[:64] == other[:64]).all()
    assert one[64] != other[64]
    assert set(one.tolist()) <= set(VOCABULARY)
    another_run = (await make_prompts(trace, client, VOCABULARY, seed=4))(trace.requests[0])
    assert (one[:32] != another_run[:32]).any()


async def test_token_ids_that_a_trace_has_are_sent(fake, session, trace):
    trace = replace(trace, requests=(replace(trace.requests[0], prompt=(7, 8, 9)),))
    client = LoadClient(session, fake.url, Api.COMPLETIONS, "fake")
    prompt = (await make_prompts(trace, client, VOCABULARY, seed=0))(trace.requests[0])
    assert prompt.dtype == np.uint32
    assert prompt.tolist() == [7, 8, 9]


@pytest.mark.parametrize("tokens_per_word", [1, 5])
async def test_texts_for_chats_are_as_long_in_the_endpoints_tokens(fake, session, trace, tokens_per_word):
    fake.tokens_per_word = tokens_per_word
    client = LoadClient(session, fake.url, Api.CHAT, "fake")
    prompt_of = await make_prompts(trace, client, VOCABULARY, seed=0)
    one, other, text = map(prompt_of, trace.requests)
    assert text == "as it is"
    shared = 64 // tokens_per_word
    assert one.split()[:shared] == other.split()[:shared]
    assert one.split()[shared] != other.split()[shared]
    tokens = len(one.split()) * tokens_per_word
    assert tokens == pytest.approx(100, rel=0.08)


async def test_chats_go_as_they_are(fake, session, trace):
    trace = replace(trace, requests=(replace(trace.requests[0], prompt=CHAT),))
    client = LoadClient(session, fake.url, Api.CHAT, "fake")
    assert (await make_prompts(trace, client, VOCABULARY, seed=0))(trace.requests[0]) is CHAT
    with pytest.raises(UnusableEndpoint, match="/v1/completions takes no chats"):
        await make_prompts(trace, LoadClient(session, fake.url, Api.COMPLETIONS, "fake"), VOCABULARY, seed=0)


async def test_a_smaller_vocabulary_is_known_before_the_load(fake, session, trace):
    fake.vocab_size = 31_999
    client = LoadClient(session, fake.url, Api.COMPLETIONS, "fake")
    with pytest.raises(UnusableEndpoint, match="answered 400: token ids go to 31998"):
        await make_prompts(trace, client, VOCABULARY, seed=0)
    texts = replace(trace, requests=trace.requests[2:])
    assert (await make_prompts(texts, client, VOCABULARY, seed=0))(texts.requests[0]) == "as it is"


async def test_an_endpoint_that_counts_no_tokens_cannot_be_sent_texts(fake, session, trace):
    async def count_nothing(request: web.Request, body: dict) -> web.StreamResponse:
        return web.Response(body=fake.usage(0, 1, 0), content_type="text/event-stream")

    fake.handler = count_nothing
    with pytest.raises(UnusableEndpoint, match="100 words more are 0 tokens more"):
        await make_prompts(trace, LoadClient(session, fake.url, Api.CHAT, "fake"), VOCABULARY, seed=0)
