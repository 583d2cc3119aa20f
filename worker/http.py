"""What the worker answers with: JSON, and every failure as OpenAI's error object."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from aiohttp import web

from protocol.errors import ApiError, InvalidRequest, MethodNotAllowed, NotFound, PayloadTooLarge, unexpected

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Dataclasses, tuples and enums included."""
    return web.Response(body=orjson.dumps(body), status=status, headers=headers, content_type="application/json")


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Whatever a handler raises leaves as an error object."""
    allow: dict[str, str] = {}
    try:
        return await handler(request)
    except ConnectionError:  # the client has gone: aiohttp knows what to do
        raise
    except ApiError as error:
        failed = error
    except web.HTTPException as error:
        failed = _translated(request, error)
        allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    except Exception as error:
        failed = unexpected("worker", error)
    return json_response(failed.body(), failed.status, {**failed.headers(), **allow})


def _translated(request: web.Request, error: web.HTTPException) -> ApiError:
    """aiohttp's own refusals."""
    if isinstance(error, web.HTTPNotFound):
        return NotFound(f"there is nothing at {request.path}")
    if isinstance(error, web.HTTPMethodNotAllowed):
        return MethodNotAllowed(request.path, request.method, sorted(error.allowed_methods))
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return PayloadTooLarge(f"the request body may have at most {request.client_max_size} bytes")
    return InvalidRequest(error.text or error.reason)
