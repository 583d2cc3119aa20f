"""The front of a process whose sibling and supervisor are not there."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from router.app import build, front
from router.config import RouterConfig
from router.processes.commons import Commons
from router.processes.gateway import JointGateway
from router.processes.member import answers_of
from router.processes.questions import answering


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    config, commons = RouterConfig(port=0), Commons(tmp_path, 2)
    async with AsyncExitStack() as stack:
        parts = build(stack, config)
        await stack.enter_async_context(answering(commons.member(0), answers_of(parts)))
        url = await stack.enter_async_context(front(config, JointGateway(parts, commons, max_decisions=10)))
        yield await stack.enter_async_context(aiohttp.ClientSession(url))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/workers", {"workers": [], "unanswered_processes": [1]}),
        ("/decisions?last=99", {"decisions": [], "unanswered_processes": [1]}),
        ("/ready", {"ready": False, "workers": {}, "placed_by_text": {}}),
    ],
)
async def test_it_answers_for_itself_and_says_who_is_missing(
    client: aiohttp.ClientSession, path: str, body: dict[str, Any]
) -> None:
    async with client.get(path) as response:
        assert await response.json() == body


@pytest.mark.parametrize(("method", "path"), [("POST", "/workers"), ("DELETE", "/workers/a:1")])
async def test_without_a_supervisor_nothing_changes(client: aiohttp.ClientSession, method: str, path: str) -> None:
    async with client.request(method, path, json={"url": "http://a:1"}) as response:
        assert response.status == 503
        assert "the router's supervisor did not answer" in (await response.json())["error"]["message"]


async def test_bad_requests_are_told_what_is_wrong(client: aiohttp.ClientSession) -> None:
    async with client.post("/workers", json={"uri": "http://a:1"}) as response:
        assert response.status == 400
    async with client.get("/decisions?last=none") as response:
        assert response.status == 400
