"""A scripted OpenAI server on a real socket, traces by hand, an encoder, and waiting for conditions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import aiohttp
import orjson
import pytest
from aiohttp import web
from transformers import PreTrainedTokenizerFast

from protocol.prompts import PromptEncoder
from replay.client import open_session
from replay.traces.trace import Trace, TraceRequest

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeEngine:
    """Answers chats with `handler`; by default streams `reply(body)`, one event for each piece."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict] = []
        self.reply: Callable[[dict], list[str]] = lambda body: ["Hello", ", you"]
        self.handler: Handler = self.stream

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(orjson.loads(await request.read()))
        return await self.handler(request)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = await self.start(request)
        pieces = self.reply(self.bodies[-1])
        for piece in pieces:
            await response.write(self.event(piece))
        await response.write(self.usage(completion_tokens=len(pieces)) + b"data: [DONE]\n\n")
        return response

    async def start(self, request: web.Request) -> web.StreamResponse:
        headers = {
            "content-type": "text/event-stream",
            "x-warmroute-worker": "w-1",
            "x-warmroute-cached-tokens": "48",
        }
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        return response

    @staticmethod
    def event(content: str | None) -> bytes:
        delta = {"role": "assistant"} if content is None else {"content": content}
        return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": delta}], "usage": None}) + b"\n\n"

    @staticmethod
    def usage(prompt_tokens: int = 70, completion_tokens: int = 2, cached_tokens: int = 64) -> bytes:
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached_tokens},
        }
        return b"data: " + orjson.dumps({"choices": [], "usage": usage}) + b"\n\n"


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    fake = FakeEngine()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", fake.chat)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    fake.url = f"http://{host}:{port}"
    yield fake
    await runner.cleanup()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as opened:
        yield opened


BLOCK_TOKENS = 32


def _trace_of(rows: Sequence[dict[str, object]]) -> Trace:
    fresh = 1_000_000
    requests = []
    for row in rows:
        blocks = -(-int(str(row["input_tokens"])) // BLOCK_TOKENS)
        named = {"hash_ids": tuple(range(fresh, fresh + blocks)), "output_tokens": 1, "arrival_s": 0.0}
        fresh += blocks
        requests.append(TraceRequest(**(named | row)))
    return Trace("test", tuple(requests), BLOCK_TOKENS, True)


@pytest.fixture
def make_trace() -> Callable[[Sequence[dict[str, object]]], Trace]:
    """Rows with what a test cares for; names for blocks of 32 tokens are made up where a row has none."""
    return _trace_of


@pytest.fixture
def encoder(tokenizer: PreTrainedTokenizerFast) -> PromptEncoder:
    """One token a byte or special token, so that token counts can be read off the text."""
    return PromptEncoder(tokenizer)


async def _eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


@pytest.fixture
def eventually() -> Callable[..., Awaitable[None]]:
    """Waits until a condition holds, or fails after 20 seconds."""
    return _eventually
