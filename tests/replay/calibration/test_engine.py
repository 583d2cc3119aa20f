"""When tokens came, read from an engine on a real socket."""

import numpy as np
import pytest
from aiohttp import web

from replay.calibration.engine import HttpEngine
from replay.errors import RequestFailed

PROMPTS = [np.array([7, 8, 9], dtype=np.uint32), np.array([1, 2], dtype=np.uint32)]


class Counting:
    """A clock that never stands still."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


async def test_all_prompts_at_once_and_a_time_for_each_token(fake, session):
    answers = await HttpEngine(session, fake.url, "fake", Counting()).answer(PROMPTS, 5)
    assert [len(answer.tokens_s) for answer in answers] == [5, 5]
    for answer in answers:
        assert list(answer.tokens_s) == sorted(answer.tokens_s)
        assert 0 < answer.sent_s < answer.tokens_s[0]
    assert sorted(body["prompt"] for body in fake.bodies) == [[1, 2], [7, 8, 9]]
    for body in fake.bodies:
        assert (body["max_tokens"], body["ignore_eos"], body["return_token_ids"]) == (5, True, True)


async def test_several_tokens_in_one_event_count_by_their_ids(fake, session):
    async def heaps(request: web.Request, body: dict) -> web.StreamResponse:
        events = fake.event({"text": "ab", "token_ids": [1, 2]}) + fake.event({"text": "", "token_ids": [3]})
        return web.Response(body=events + fake.usage(3, 3, 0), content_type="text/event-stream")

    fake.handler = heaps
    [answer] = await HttpEngine(session, fake.url, "fake").answer(PROMPTS[:1], 3)
    assert len(answer.tokens_s) == 3


async def test_tokens_that_cannot_be_told_apart_are_an_error(fake, session):
    async def heaps(request: web.Request, body: dict) -> web.StreamResponse:
        return web.Response(body=fake.event({"text": "ab"}) + fake.usage(3, 2, 0), content_type="text/event-stream")

    fake.handler = heaps
    with pytest.raises(RequestFailed, match="its events bring 1 tokens and its usage says 2"):
        await HttpEngine(session, fake.url, "fake").answer(PROMPTS, 2)


async def test_one_that_fails_fails_all(fake, session):
    fake.vocab_size = 5
    with pytest.raises(RequestFailed, match="answered 400: token ids go to 4"):
        await HttpEngine(session, fake.url, "fake").answer(PROMPTS, 2)
