"""An engine without a model: the HTTP and event wire of vLLM, answers that the test scripts."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from kv_events.events import AllBlocksCleared, BlockStored
from kv_events.hashing import cache_digests, cache_root, published_hash
from kv_events.publisher import ZmqPublisher
from protocol.prompts import PromptEncoder
from protocol.requests import chat_request, completion_request
from protocol.sse import DONE, encode_event

SIZE = 16

Script = Callable[["Engine", web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


async def answer(engine: "Engine", request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Caches the prompt and answers at once, streaming or not."""
    usage = engine.serve(body)
    if not body.get("stream"):
        return web.json_response({"choices": [{"index": 0, "message": {"content": "hello"}}], "usage": usage})
    response = await begin_stream(request)
    for word in ("hel", "lo"):
        await response.write(chunk(word))
    await response.write(encode_event(json.dumps({"choices": [], "usage": usage}).encode()) + DONE)
    return response


async def begin_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8", "x-engine": "fake"})
    await response.prepare(request)
    return response


def chunk(text: str) -> bytes:
    return encode_event(json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode())


@dataclass
class Engine:
    """One fake engine. `received` are its requests (headers, body), `cached` the digests of its cached blocks."""

    encoder: PromptEncoder
    tokenizer_path: str
    script: Script = answer
    healthy: bool = True
    health_gate: asyncio.Event | None = None
    received: list[tuple[web.Request, dict[str, Any]]] = field(default_factory=list)
    cached: set[bytes] = field(default_factory=set)
    running: int = 0
    url: str = ""
    publisher: ZmqPublisher | None = None
    _runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        self.publisher = ZmqPublisher("tcp://*:0", "tcp://*:0")
        app = web.Application(client_max_size=1 << 28)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/kv_event_sources", self._sources)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_route("*", "/v1/{path:.*}", self._generate)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    @property
    def id(self) -> str:
        return self.url.removeprefix("http://")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def stop(self) -> None:
        """As a killed process: connections break, the port refuses, the cache is gone."""
        if self._runner is not None:
            for connection in list(self._runner.server.connections if self._runner.server else []):
                if connection.transport is not None:
                    connection.transport.abort()
            await self._runner.cleanup()
            self._runner = None
        if self.publisher is not None:
            self.publisher.close()
        self.cached.clear()

    def serve(self, body: dict[str, Any]) -> dict[str, Any]:
        """Cache the prompt as an engine does, publish it, and return the usage."""
        parsed = chat_request(body) if "messages" in body else completion_request(body)
        (tokens,) = self.encoder.encode(parsed)
        root = cache_root(None, parsed.cache_salt)
        digests = cache_digests(tokens, SIZE, root)
        hits = 0
        while hits < (len(tokens) - 1) // SIZE and digests[hits] in self.cached:
            hits += 1
        new = [i for i, digest in enumerate(digests) if digest not in self.cached]
        if new and self.publisher is not None:
            first = new[0]
            self.publisher.publish(
                [
                    BlockStored(
                        block_hashes=tuple(map(published_hash, digests[first:])),
                        parent_block_hash=published_hash(digests[first - 1]) if first else None,
                        token_ids=tuple(tokens[first * SIZE : len(digests) * SIZE]),
                        block_size=SIZE,
                        cache_salt=None if first else parsed.cache_salt,
                    )
                ]
            )
        self.cached.update(digests)
        return {
            "prompt_tokens": len(tokens),
            "completion_tokens": 2,
            "total_tokens": len(tokens) + 2,
            "prompt_tokens_details": {"cached_tokens": hits * SIZE},
        }

    def clear(self) -> None:
        self.cached.clear()
        assert self.publisher is not None
        self.publisher.publish([AllBlocksCleared()])

    async def _health(self, request: web.Request) -> web.Response:
        if self.health_gate is not None:
            await self.health_gate.wait()
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, request: web.Request) -> web.Response:
        card = {"id": "tiny", "object": "model", "root": self.tokenizer_path, "parent": None, "max_model_len": 4096}
        return web.json_response({"object": "list", "data": [card]})

    async def _sources(self, request: web.Request) -> web.Response:
        assert self.publisher is not None
        return web.json_response({"0": self.publisher.describe()})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(text=f'vllm:cache_config_info{{block_size="{SIZE}"}} 1.0\n')

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else {}
        self.received.append((request, body))
        self.running += 1
        try:
            return await self.script(self, request, body)
        finally:
            self.running -= 1


@asynccontextmanager
async def engine_running(encoder: PromptEncoder, tokenizer_path: str) -> AsyncIterator[Engine]:
    engine = Engine(encoder, tokenizer_path)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
