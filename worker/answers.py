"""Writing answers: a generation as one JSON object or as a stream of events."""

import orjson
from aiohttp import web

from protocol.errors import ApiError, InvalidRequest, unexpected
from protocol.requests import ChatRequest, CompletionRequest
from protocol.sse import DONE, encode_event
from worker.choices import ChoiceDelta
from worker.engine import BadPrompt
from worker.generation import Generation
from worker.http import json_response
from worker.responses import AnswerForm

STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


async def answer(
    http: web.Request, request: ChatRequest | CompletionRequest, generation: Generation, form: AnswerForm
) -> web.StreamResponse:
    """Runs the generation to its end, or to that of the client's patience. Raises ApiError while nothing is sent."""
    try:
        async with generation:
            if request.stream:
                return await _stream(http, request.include_usage, generation, form)
            return json_response(form.whole(await generation.whole(), generation.usage))
    except BadPrompt as error:
        param = "messages" if isinstance(request, ChatRequest) else "prompt"
        raise InvalidRequest(str(error), param=param) from error


async def _stream(
    http: web.Request, include_usage: bool, generation: Generation, form: AnswerForm
) -> web.StreamResponse:
    """Headers wait for the first token: until then a failure can still have its own status."""
    first = await anext(generation)
    response = web.StreamResponse(headers=STREAM_HEADERS)
    await response.prepare(http)
    for chunk in form.opening():
        await _send(response, chunk)
    await _send_delta(response, form, first)
    try:
        async for delta in generation:
            await _send_delta(response, form, delta)
        if include_usage:
            await _send(response, form.usage_chunk(generation.usage))
    except ConnectionError:
        raise
    except Exception as error:
        failed = error if isinstance(error, ApiError) else unexpected("worker", error)
        await _send(response, failed.body())
    await response.write(DONE)
    await response.write_eof()
    return response


async def _send_delta(response: web.StreamResponse, form: AnswerForm, delta: ChoiceDelta) -> None:
    """Unless it says nothing: its text is held back, for the rest of a character or for what may be a stop string."""
    if delta.text or delta.finish_reason is not None or form.wants_tokens:
        await _send(response, form.chunk(delta))


async def _send(response: web.StreamResponse, chunk: object) -> None:
    await response.write(encode_event(orjson.dumps(chunk)))
