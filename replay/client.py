"""Clients that measure: they stream every answer and note when it came and what its usage said.

On aiohttp, whose streaming costs a client several times less CPU than httpx does: on a small machine what the client
burns is taken from the engines that it measures.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from protocol.sse import EventReader, ResponsePeek, Usage
from replay.errors import RequestFailed

CONNECT_TIMEOUT_S = 5.0
KEEP_ALIVE_S = 4.0
"""Idle connections are closed before engines do it, which many do after 5 s: a request must not meet that moment."""

JSON_BODY = {"content-type": "application/json"}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
"""What each request asks for."""

DONE = b"[DONE]"
MAX_ERROR_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Exchange:
    """When a request was sent and its answer had ended, on the client's clock, and the answer's headers."""

    sent_s: float
    ended_s: float
    headers: Mapping[str, str]

    @property
    def worker(self) -> str | None:
        """Who answered, where Warmroute's router says it."""
        return self.headers.get("x-warmroute-worker")

    @property
    def predicted_cached_tokens(self) -> int | None:
        """How much of the prompt Warmroute's router took to be cached."""
        predicted = self.headers.get("x-warmroute-cached-tokens")
        return None if predicted is None else int(predicted)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer and its times. The last two are those of `Exchange`."""

    text: str
    usage: Usage
    sent_at_s: float
    """On the client's clock."""
    ttft_ms: float
    """From sending to the first byte that carried text; to the end of an answer that has none."""
    duration_ms: float
    worker: str | None
    predicted_cached_tokens: int | None


def open_session(silence_s: float = 120.0) -> aiohttp.ClientSession:
    """For any number of requests at once. Close it, or use it as an async context manager.

    An answer may take as long as it likes, but not be silent for longer than `silence_s`: a cold prompt in a long queue
    waits for seconds.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
    return aiohttp.ClientSession(timeout=timeout, connector=connector)


async def stream(
    session: aiohttp.ClientSession,
    url: str,
    body: bytes,
    feed: Callable[[bytes, float], None],
    clock_s: Callable[[], float],
    headers: Mapping[str, str] = JSON_BODY,
) -> Exchange:
    """POST a JSON body; `feed` gets the pieces of the answer as they come, with their times. Raises RequestFailed."""
    sent_s = clock_s()
    try:
        async with session.post(url, data=body, headers=headers) as response:
            if response.status != 200:
                raise await _refusal(response)
            async for chunk in response.content.iter_any():
                feed(chunk, clock_s())
    except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
        raise RequestFailed(f"{url}: {str(error) or type(error).__name__}") from error
    return Exchange(sent_s, clock_s(), response.headers)


async def _refusal(response: aiohttp.ClientResponse) -> RequestFailed:
    body = await response.content.read(MAX_ERROR_BYTES)
    reason = error_message(body) or body.decode("utf-8", "replace")
    return RequestFailed(f"{response.url} answered {response.status}: {reason}", response.status)


def error_message(document: bytes) -> str | None:
    """What an OpenAI-style error object says; None for any other document."""
    try:
        answer = orjson.loads(document)
    except orjson.JSONDecodeError:
        return None
    error = answer.get("error") if isinstance(answer, dict) else None
    return str(error.get("message", error) if isinstance(error, dict) else error) if error else None


def complete(done: bool, usage: Usage | None) -> Usage:
    """The usage of an answer at its end, if it is whole. Raises RequestFailed."""
    if not done or usage is None:
        raise RequestFailed(f"the answer ended without {'its usage' if done else '[DONE]'}")
    return usage


def parsed(event: bytes) -> dict[str, Any]:
    """A chunk of an answer. Raises RequestFailed for anything else, errors among it."""
    try:
        chunk = orjson.loads(event)
    except orjson.JSONDecodeError as error:
        raise RequestFailed(f"an event is not JSON: {event[:200]!r}") from error
    if not isinstance(chunk, dict) or "error" in chunk:
        reason = error_message(event) or event[:200].decode("utf-8", "replace")
        raise RequestFailed(f"the answer broke off: {reason}")
    return chunk


def tokens_in(chunk: Mapping[str, Any]) -> int:
    """How many tokens an answer's chunk brings: as many as it has ids of, else one, though its text may be empty; but
    none if all it does is to open the answer or to end it."""
    choices = chunk.get("choices")
    if not choices:
        return 0
    token_ids = choices[0].get("token_ids")
    if token_ids is not None:
        return len(token_ids)
    said = choices[0].get("delta", choices[0])
    has_text = any(said.get(name) for name in ("text", "content", "reasoning_content"))
    return int(has_text or not (said.get("role") or choices[0].get("finish_reason")))


class ChatClient:
    """Talks to one OpenAI-style server at `url` (`http://HOST:PORT`), through a session that its caller closes."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, clock_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._session, self._url, self._clock_s = session, url + "/v1/chat/completions", clock_s

    async def chat(self, fields: Mapping[str, Any]) -> Answer:
        """Send a chat request of these fields, streamed, and read its answer to the end. Raises RequestFailed."""
        body = orjson.dumps({**fields, **STREAMED})
        reading = _Reading()
        exchange = await stream(self._session, self._url, body, reading.feed, self._clock_s)
        return reading.answer(exchange)


class _Reading:
    """An answer as it comes in."""

    def __init__(self) -> None:
        self._events = EventReader()
        self._peek = ResponsePeek("text/event-stream")
        self._pieces: list[str] = []
        self._first_text_at_s: float | None = None
        self._done = False

    def feed(self, chunk: bytes, now_s: float) -> None:
        self._peek.feed(chunk)
        for data in self._events.feed(chunk):
            if data == DONE:
                self._done = True
            elif text := _text(data):
                self._pieces.append(text)
                if self._first_text_at_s is None:
                    self._first_text_at_s = now_s

    def answer(self, exchange: Exchange) -> Answer:
        usage = complete(self._done, self._peek.usage)
        first_text_at_s = exchange.ended_s if self._first_text_at_s is None else self._first_text_at_s
        return Answer(
            text="".join(self._pieces),
            usage=usage,
            sent_at_s=exchange.sent_s,
            ttft_ms=(first_text_at_s - exchange.sent_s) * 1e3,
            duration_ms=(exchange.ended_s - exchange.sent_s) * 1e3,
            worker=exchange.worker,
            predicted_cached_tokens=exchange.predicted_cached_tokens,
        )


def _text(event: bytes) -> str:
    """The text of a chunk of the first choice, empty for chunks without any. Raises RequestFailed for errors."""
    choices = parsed(event).get("choices")
    delta = choices[0].get("delta") if choices else None
    return (delta.get("content") or "") if delta else ""
