"""The HTTP front: what clients and operators can ask of the router.

POST /v1/chat/completions, /v1/completions     placed by prefix and load
*    /v1/...                                    any other engine path: placed by load, passed through
GET  /v1/models                                 the union of the workers' models
GET  /health, /ready, /metrics
GET/POST /workers, DELETE /workers/{id}, GET /workers/{id}/tree
POST /route                                     where a chat or completion would go, and why; places nothing
GET  /decisions?last=N                          the last placements, newest first
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from protocol.errors import ApiError, InvalidRequest, unexpected
from protocol.requests import parse_object
from router.config import WorkerSpec
from router.core import RouterCore
from router.http.answers import Response, error_response, json_response
from router.http.routes import Routes
from router.http.server import Request
from router.json_answers import decision_json, model_json, tree_json, worker_json
from router.prompt_reader import PromptReader
from router.records import CacheState, WorkerReport
from router.relay import Relay
from router.workers import Workers

DEFAULT_DECISIONS = 20
SESSION_HEADER = b"x-session-id"  # vLLM's

Endpoint = Callable[..., Awaitable[Response | None]]
"""Takes the request and the path's variables. None: the relay has answered already."""


class Gateway:
    """Handlers only: each parses, asks the core or the relay, and answers."""

    def __init__(
        self, core: RouterCore, workers: Workers, prompts: PromptReader, relay: Relay, registry: CollectorRegistry
    ) -> None:
        self._core, self._workers, self._prompts, self._relay, self._registry = core, workers, prompts, relay, registry
        self._routes = Routes[Endpoint](
            ("POST", "/v1/chat/completions", self.chat),
            ("POST", "/v1/completions", self.completion),
            ("GET", "/v1/models", self.models),
            ("*", "/v1/*", self.other),
            ("GET", "/health", self.health),
            ("GET", "/ready", self.ready),
            ("GET", "/metrics", self.metrics),
            ("GET", "/workers", self.list_workers),
            ("POST", "/workers", self.add_worker),
            ("DELETE", "/workers/{id}", self.remove_worker),
            ("GET", "/workers/{id}/tree", self.tree),
            ("POST", "/route", self.explain),
            ("GET", "/decisions", self.decisions),
        )

    async def handle(self, request: Request) -> None:
        """A server's handler: whatever an endpoint raises leaves as an error object."""
        try:
            endpoint, variables = self._routes.find(request.head.method.decode(), request.path)
            response = await endpoint(request, **variables)
        except ApiError as error:
            response = error_response(error, {"x-request-id": request.id})
        except Exception as error:
            response = error_response(unexpected("router", error), {"x-request-id": request.id})
        if response is not None and not request.answer.begun:
            request.answer.send(response)

    # Inference

    async def chat(self, request: Request) -> Response | None:
        return await self._relay.serve(request, await self._prompts.chat(request.body, request.id, _session(request)))

    async def completion(self, request: Request) -> Response | None:
        route = await self._prompts.completion(request.body, request.id, _session(request))
        return await self._relay.serve(request, route)

    async def other(self, request: Request) -> Response | None:
        reason = f"{request.path} is placed by load only"
        route = self._prompts.other(_model_in(request.body), len(request.body), request.id, reason)
        return await self._relay.serve(request, route)

    async def models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [model_json(card) for card in self._core.models()]})

    # Operation

    async def health(self, request: Request) -> Response:
        """200 while the process serves."""
        return json_response({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """200 when a worker can take requests and its cache is known as far as it can be; else 503 and why."""
        return readiness(self._core.workers(time.monotonic()), self._prompts.problems)

    async def metrics(self, request: Request) -> Response:
        return scrape(self._registry)

    async def list_workers(self, request: Request) -> Response:
        return json_response({"workers": [worker_json(report) for report in self._core.workers(time.monotonic())]})

    async def add_worker(self, request: Request) -> Response:
        worker = self._workers.add(worker_spec(request))
        return json_response(worker_json(self._core.worker(worker, time.monotonic())), 201)

    async def remove_worker(self, request: Request, id: str) -> Response:
        """202 and the requests that it still serves, or 200 when it is gone already."""
        in_flight = self._workers.drain(id)
        return json_response({"worker": id, "in_flight": in_flight}, 202 if in_flight else 200)

    async def tree(self, request: Request, id: str) -> Response:
        return json_response(tree_json(id, self._core.tree(id)))

    async def explain(self, request: Request) -> Response:
        read = self._prompts.chat if "messages" in parse_object(request.body) else self._prompts.completion
        route = await read(request.body, request.id, _session(request))
        now = time.monotonic()
        return json_response(decision_json(self._core.explain(route, now), None, now))

    async def decisions(self, request: Request) -> Response:
        now = time.monotonic()
        logged = self._core.decisions(decisions_asked_for(request))
        return json_response({"decisions": [decision_json(decision, finish, now) for decision, finish in logged]})


def readiness(reports: Sequence[WorkerReport], problems: Mapping[str, str]) -> Response:
    up = [report for report in reports if report.health == "up" and not report.draining]
    known = [w for w in up if all(slot.cache_state is not CacheState.SYNCING for slot in w.slots)]
    body = {
        "ready": bool(known),
        "workers": {report.id: report.reason or "up" for report in reports},
        "placed_by_text": problems,
    }
    return json_response(body, 200 if known else 503)


def scrape(registry: Collector) -> Response:
    return Response(200, [(b"content-type", b"text/plain; version=0.0.4")], generate_latest(registry))


def worker_spec(request: Request) -> WorkerSpec:
    """Raises InvalidRequest."""
    try:
        return WorkerSpec.of(parse_object(request.body))
    except ValueError as error:
        raise InvalidRequest(str(error)) from error


def decisions_asked_for(request: Request) -> int:
    """Raises InvalidRequest."""
    return _positive(parse_qs(request.query).get("last", [str(DEFAULT_DECISIONS)])[-1], "last")


def _session(request: Request) -> str | None:
    return request.head.fields.get(SESSION_HEADER, b"").decode("latin-1") or None


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
