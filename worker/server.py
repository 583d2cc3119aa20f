"""The worker's HTTP side: OpenAI's endpoints and vLLM's beside them, on aiohttp.

A client that goes away cancels its handler, also while it waits for a first token, and with it everything that it had
in the engine. Errors are ApiErrors throughout; http.py makes JSON of them.
"""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import uuid4

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from kv_events.publisher import EventPublisher
from protocol.errors import InvalidRequest, ModelNotFound
from protocol.fields import boolean
from protocol.prompts import PromptEncoder
from protocol.requests import (
    ChatRequest,
    CompletionRequest,
    chat_request,
    completion_request,
    parse_chat,
    parse_completion,
    parse_object,
)
from worker.answers import answer
from worker.engine_thread import EngineThread
from worker.generation import Generator, Prompt
from worker.generation_params import GenerationParams, ModelLimits, SamplingDefaults, chat_params, completion_params
from worker.http import errors_as_json, json_response
from worker.metrics import Metrics
from worker.responses import ChatForm, CompletionForm, Envelope, Json

MAX_BODY_BYTES = 32 << 20
INLINE_BODY_BYTES = 16 << 10  # up to here tokenizing takes the loop a few ms; longer prompts go to a thread
MAX_REQUEST_ID_CHARS = 128
KEEP_ALIVE_S = 75.0
"""Longer than HTTP clients keep an idle connection (httpx 5 s, aiohttp 15 s, nginx 60 s): they are to close it first,
or else a request meets a connection that this side has just given up. Engines with 5 s lose requests that way."""
SHUTDOWN_GRACE_S = 5.0  # for what runs when the worker is told to stop


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What clients may know of the model. `root` is where it was loaded from."""

    name: str
    root: str
    created_s: int
    encoder: PromptEncoder
    defaults: SamplingDefaults
    limits: ModelLimits


class Server:
    """The handlers, and the application that has them."""

    def __init__(self, engine: EngineThread, model: ServedModel, publisher: EventPublisher, metrics: Metrics) -> None:
        self._engine = engine
        self._model = model
        self._publisher = publisher
        self._metrics = metrics
        self._generator = Generator(engine, model.encoder.tokenizer, metrics)

    @asynccontextmanager
    async def listening(self, bound: socket.socket, grace_s: float = SHUTDOWN_GRACE_S) -> AsyncIterator[str]:
        """Serve on a socket of `bound_socket` while the block runs; gives the URL.

        Leaving it ends the engine too: nothing new is taken, what runs has `grace_s` to finish, the rest is told.
        """
        app = self._app()
        app.on_shutdown.append(lambda _: self._engine.close(grace_s))
        runner = web.AppRunner(
            app, handler_cancellation=True, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=1.0, access_log=None
        )
        await runner.setup()
        try:
            await web.SockSite(runner, bound, backlog=1024).start()
            yield _url(*bound.getsockname()[:2])
        finally:
            await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[errors_as_json], client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/chat/completions/render", self.render_chat)
        app.router.add_post("/v1/completions/render", self.render_completions)
        app.router.add_get("/v1/models", self.models)
        app.router.add_post("/tokenize", self.tokenize)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/kv_event_sources", self.kv_event_sources)
        app.router.add_post("/reset_prefix_cache", self.reset_prefix_cache)
        return app

    async def chat(self, http: web.Request) -> web.StreamResponse:
        request = parse_chat(await http.read())
        self._check_model(request.model)
        params = chat_params(request, self._model.defaults, self._model.limits)
        prompts = [Prompt(token_ids) for token_ids in await self._encode(http, request)]
        envelope = self._envelope(http, "chatcmpl", params, prompts)
        generation = self._generator.start(prompts, params, request.cache_salt)
        return await answer(http, request, generation, ChatForm(envelope))

    async def completions(self, http: web.Request) -> web.StreamResponse:
        request = parse_completion(await http.read())
        self._check_model(request.model)
        params = completion_params(request, self._model.defaults, self._model.limits)
        encoded = await self._encode(http, request)
        prompts = [Prompt(ids, self._echo(given, params)) for ids, given in zip(encoded, request.prompts, strict=True)]
        envelope = self._envelope(http, "cmpl", params, prompts)
        generation = self._generator.start(prompts, params, request.cache_salt)
        return await answer(http, request, generation, CompletionForm(envelope))

    async def render_chat(self, http: web.Request) -> web.StreamResponse:
        """The prompt as the engine would see it, in vLLM's GenerateRequest: routers ask this before they place it."""
        request = parse_chat(await http.read())
        self._check_model(request.model)
        (token_ids,) = await self._encode(http, request)
        return json_response(self._rendered(http, "chatcmpl", token_ids))

    async def render_completions(self, http: web.Request) -> web.StreamResponse:
        """The same for each prompt of the request."""
        request = parse_completion(await http.read())
        self._check_model(request.model)
        return json_response([self._rendered(http, "cmpl", ids) for ids in await self._encode(http, request)])

    async def models(self, http: web.Request) -> web.StreamResponse:
        card = {
            "id": self._model.name,
            "object": "model",
            "created": self._model.created_s,
            "owned_by": "warmroute",
            "root": self._model.root,
            "parent": None,
            "max_model_len": self._model.limits.context_tokens,
        }
        return json_response({"object": "list", "data": [card]})

    async def tokenize(self, http: web.Request) -> web.StreamResponse:
        """One prompt's tokens as the engine would see them, whatever their number."""
        fields = parse_object(await http.read())
        request = chat_request(fields) if "messages" in fields else completion_request(fields)
        self._check_model(request.model)
        if isinstance(request, CompletionRequest) and not isinstance(fields["prompt"], str):
            raise InvalidRequest("'prompt' must be one text", param="prompt")
        (tokens,) = await self._encode(http, request)
        names = self._model.encoder.tokenizer.convert_ids_to_tokens(list(tokens))
        return json_response(
            {
                "count": len(tokens),
                "max_model_len": self._model.limits.context_tokens,
                "tokens": tokens,
                "token_strs": names if boolean(fields, "return_token_strs") else None,
            }
        )

    async def health(self, http: web.Request) -> web.StreamResponse:
        self._engine.check_open()
        return web.Response()

    async def metrics(self, http: web.Request) -> web.StreamResponse:
        return web.Response(body=self._metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def kv_event_sources(self, http: web.Request) -> web.StreamResponse:
        """By data-parallel rank, of which there is one."""
        return json_response({"0": self._publisher.describe()})

    async def reset_prefix_cache(self, http: web.Request) -> web.StreamResponse:
        return json_response({"success": await self._engine.reset_prefix_cache()})

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._model.name:
            raise ModelNotFound(f"the model {name!r} is not served here; {self._model.name!r} is", param="model")

    async def _encode(self, http: web.Request, request: ChatRequest | CompletionRequest) -> tuple[tuple[int, ...], ...]:
        if len(await http.read()) <= INLINE_BODY_BYTES:
            return self._model.encoder.encode(request)
        return await asyncio.to_thread(self._model.encoder.encode, request)

    def _echo(self, prompt: str | tuple[int, ...], params: GenerationParams) -> str:
        if not params.echo:
            return ""
        if isinstance(prompt, str):
            return prompt
        text: str = self._model.encoder.tokenizer.decode(list(prompt))
        return text

    def _rendered(self, http: web.Request, kind: str, token_ids: tuple[int, ...]) -> Json:
        """What names the prompt. The sampling parameters stand in the request."""
        return {"request_id": _response_id(http, kind), "model": self._model.name, "token_ids": token_ids}

    def _envelope(self, http: web.Request, kind: str, params: GenerationParams, prompts: list[Prompt]) -> Envelope:
        return Envelope(
            response_id=_response_id(http, kind),
            created_s=int(time.time()),
            model=self._model.name,
            params=params,
            prompts=tuple(prompt.token_ids for prompt in prompts),
            tokenizer=self._model.encoder.tokenizer,
        )


def _response_id(http: web.Request, kind: str) -> str:
    return f"{kind}-{http.headers.get('X-Request-Id', uuid4().hex)[:MAX_REQUEST_ID_CHARS]}"


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that has its port but does not listen yet, so that whoever comes too early is refused at once.

    Raises OSError for a port in use or a host that is not this machine's.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port is free as soon as its owner has ended
        bound.bind(address)
    except OSError as error:
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return bound


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
