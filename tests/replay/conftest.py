"""OpenAI servers on real sockets, traces by hand, an encoder, and waiting for conditions."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from transformers import PreTrainedTokenizerFast

from protocol.prompts import PromptEncoder
from protocol.sse import encode_event
from replay.client import open_session
from replay.traces.trace import Trace, TraceRequest

BLOCK = 16
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Handle = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


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


class PrefixEngine:
    """An OpenAI-compatible engine with a prefix cache that never forgets.

    A token is a token id, or a word of a text, of which each counts `tokens_per_word`; a chat costs 7 more.

    `handler` may replace how requests are answered; `bodies` and `headers` are those of all requests in their order.
    """

    def __init__(self) -> None:
        self.url = ""
        self.models: list[dict[str, Any]] = [{"id": "fake"}]
        self.vocab_size = 50_000
        self.tokens_per_word = 1
        self.reports_cached = True
        self.step_s = 0.0
        self.handler: Handle = self.answer
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.counted = {"prompt_tokens": 0, "prefix_cache_hits": 0, "generation_tokens": 0}
        self._cached: set[int] = set()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/v1/{api:.*completions}", self._serve)
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        return await self.handler(request, body)

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        tokens = self.tokens_of(body)
        if max((token for token in tokens if isinstance(token, int)), default=0) >= self.vocab_size:
            return self.refuse(f"token ids go to {self.vocab_size - 1}")
        cached = self._look_up(tokens)
        self.count(len(tokens), cached, body["max_tokens"])
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if "messages" in body:
            await response.write(self.event({"delta": {"role": "assistant", "content": ""}}))
        for _ in range(body["max_tokens"]):
            token = {"delta": {"content": "x"}} if "messages" in body else {"text": "x"}
            ids = {"token_ids": [5]} if body.get("return_token_ids") else {}
            await response.write(self.event({**token, **ids}))
            await asyncio.sleep(self.step_s)
        await response.write(self.usage(len(tokens), body["max_tokens"], cached))
        return response

    def tokens_of(self, body: dict[str, Any]) -> list[object]:
        if "messages" in body:
            words = " ".join(message["content"] for message in body["messages"]).split()
            return [0] * 7 + [word for word in words for _ in range(self.tokens_per_word)]
        prompt = body["prompt"]
        return prompt.split() if isinstance(prompt, str) else prompt

    def refuse(self, message: str, status: int = 400) -> web.Response:
        return web.json_response({"error": {"message": message, "type": "invalid_request_error"}}, status=status)

    @staticmethod
    def event(choice: dict[str, Any]) -> bytes:
        return encode_event(orjson.dumps({"id": "1", "choices": [{"index": 0, **choice}], "usage": None}))

    def usage(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> bytes:
        usage: dict[str, Any] = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        if self.reports_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
        return encode_event(orjson.dumps({"choices": [], "usage": usage})) + encode_event(b"[DONE]")

    def _look_up(self, tokens: list[object]) -> int:
        """Tokens of cached blocks at the beginning, all but the last token at most; then all its blocks are cached."""
        prefixes = [hash(tuple(tokens[:end])) for end in range(BLOCK, len(tokens) + 1, BLOCK)]
        held = next((place for place, each in enumerate(prefixes) if each not in self._cached), len(prefixes))
        self._cached.update(prefixes)
        return min(held * BLOCK, len(tokens) - 1)

    def count(self, *tokens: int) -> None:
        for name, count in zip(self.counted, tokens, strict=True):
            self.counted[name] += count

    async def _list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.models})

    async def _metrics(self, request: web.Request) -> web.Response:
        lines = [f'vllm:{name}_total{{engine="0",model_name="fake"}} {count}' for name, count in self.counted.items()]
        return web.Response(text="\n".join(lines) + "\n")


async def _start(engine: PrefixEngine) -> web.AppRunner:
    runner = web.AppRunner(engine.application(), shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.url = "http://{}:{}".format(*runner.addresses[0][:2])
    return runner


@pytest.fixture
async def fake() -> AsyncIterator[PrefixEngine]:
    """In the test's own event loop."""
    engine = PrefixEngine()
    runner = await _start(engine)
    yield engine
    await runner.cleanup()


@pytest.fixture
def apart() -> Iterator[PrefixEngine]:
    """In a thread with an event loop of its own, for tests of commands, which run theirs in the main thread."""
    engine, loop = PrefixEngine(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(_start(engine), loop).result()
    yield engine
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


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
