"""The HTTP front: what clients and operators can ask of the router.

POST /v1/chat/completions, /v1/completions     placed by prefix and load
*    /v1/...                                    any other engine path: placed by load, passed through
GET  /v1/models                                 the union of the workers' models
GET  /health, /ready, /metrics
GET/POST /workers, DELETE /workers/{id}, GET /workers/{id}/tree
POST /route                                     where a chat or completion would go, and why; places nothing
GET  /decisions?last=N                          the last placements, newest first
"""

import re
import time
import uuid

from aiohttp import web

from protocol.errors import InvalidRequest
from protocol.http import errors_as_json, json_response
from protocol.requests import ChatRequest, CompletionRequest, parse_chat, parse_completion, parse_object
from router.config import WorkerSpec
from router.core import RouterCore
from router.json_answers import decision_json, model_json, tree_json, worker_json
from router.metrics import Meter, exposition
from router.prompt_reader import PromptReader
from router.records import CacheState
from router.relay import Relay
from router.workers import Workers

REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
DEFAULT_DECISIONS = 20
SESSION_HEADER = "x-session-id"  # vLLM's


class Gateway:
    """Handlers only: each parses, asks the core or the relay, and answers."""

    def __init__(
        self,
        core: RouterCore,
        workers: Workers,
        prompts: PromptReader,
        relay: Relay,
        meter: Meter,
        *,
        max_body_bytes: int,
    ) -> None:
        self._core, self._workers, self._prompts, self._relay, self._meter = core, workers, prompts, relay, meter
        self._max_body_bytes = max_body_bytes

    def application(self) -> web.Application:
        app = web.Application(
            client_max_size=self._max_body_bytes,
            middlewares=[errors_as_json("router", lambda request: {"x-request-id": request_id(request)})],
        )
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_post("/v1/completions", self.completion)
        app.router.add_get("/v1/models", self.models)
        app.router.add_route("*", "/v1/{path:.*}", self.other)
        app.router.add_get("/health", self.health)
        app.router.add_get("/ready", self.ready)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/workers", self.list_workers)
        app.router.add_post("/workers", self.add_worker)
        app.router.add_delete("/workers/{id}", self.remove_worker)
        app.router.add_get("/workers/{id}/tree", self.tree)
        app.router.add_post("/route", self.explain)
        app.router.add_get("/decisions", self.decisions)
        return app

    # Inference

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        return await self._place(request, body, parse_chat(body))

    async def completion(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        return await self._place(request, body, parse_completion(body))

    async def _place(
        self, request: web.Request, body: bytes, parsed: ChatRequest | CompletionRequest
    ) -> web.StreamResponse:
        route = await self._prompts.read(parsed, len(body), request_id(request), request.headers.get(SESSION_HEADER))
        return await self._relay.serve(request, body, route)

    async def other(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        reason = f"{request.path} is placed by load only"
        route = self._prompts.unread(_model_in(body), len(body), request_id(request), reason)
        return await self._relay.serve(request, body, route)

    async def models(self, request: web.Request) -> web.Response:
        return json_response({"object": "list", "data": [model_json(card) for card in self._core.models()]})

    # Operation

    async def health(self, request: web.Request) -> web.Response:
        """200 while the process serves."""
        return json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        """200 when a worker can take requests and its cache is known as far as it can be; else 503 and why."""
        reports = self._core.workers(time.monotonic())
        up = [report for report in reports if report.health == "up" and not report.draining]
        known = [w for w in up if all(slot.cache_state is not CacheState.SYNCING for slot in w.slots)]
        body = {
            "ready": bool(known),
            "workers": {report.id: report.reason or "up" for report in reports},
            "placed_by_load_only": self._prompts.problems,
        }
        return json_response(body, 200 if known else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=exposition(self._meter), headers={"content-type": "text/plain; version=0.0.4"})

    async def list_workers(self, request: web.Request) -> web.Response:
        return json_response({"workers": [worker_json(report) for report in self._core.workers(time.monotonic())]})

    async def add_worker(self, request: web.Request) -> web.Response:
        try:
            spec = WorkerSpec.of(parse_object(await request.read()))
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
        worker = self._workers.add(spec)
        return json_response(worker_json(self._core.worker(worker, time.monotonic())), 201)

    async def remove_worker(self, request: web.Request) -> web.Response:
        """202 and the requests that it still serves, or 200 when it is gone already."""
        worker = request.match_info["id"]
        in_flight = self._workers.drain(worker)
        return json_response({"worker": worker, "in_flight": in_flight}, 202 if in_flight else 200)

    async def tree(self, request: web.Request) -> web.Response:
        worker = request.match_info["id"]
        return json_response(tree_json(worker, self._core.tree(worker)))

    async def explain(self, request: web.Request) -> web.Response:
        body = await request.read()
        parsed = parse_chat(body) if "messages" in parse_object(body) else parse_completion(body)
        route = await self._prompts.read(parsed, len(body), request_id(request), request.headers.get(SESSION_HEADER))
        now = time.monotonic()
        return json_response(decision_json(self._core.explain(route, now), None, now))

    async def decisions(self, request: web.Request) -> web.Response:
        last = _positive(request.query.get("last", str(DEFAULT_DECISIONS)), "last")
        now = time.monotonic()
        return json_response({"decisions": [decision_json(d, finish, now) for d, finish in self._core.decisions(last)]})


def request_id(request: web.Request) -> str:
    """The client's X-Request-Id where it is fit for a header and a log, else a new one."""
    given = request.headers.get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _model_in(body: bytes) -> str | None:
    """The model of a body that the router need not understand otherwise."""
    try:
        model = parse_object(body).get("model")
    except InvalidRequest:
        return None
    return model if isinstance(model, str) else None


def _positive(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise InvalidRequest(f"{name} must be a positive whole number, not {text!r}", param=name)
    return int(text)
