"""A chat client that measures: it streams every answer and notes when its first text came and what its usage said.

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

TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=120)
"""An answer may take as long as it likes, but not fall silent: a cold prompt in a long queue waits for seconds."""

DONE = b"[DONE]"
MAX_ERROR_BYTES = 4096


class RequestFailed(Exception):
    """No complete answer came. The message says what came instead."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer and its times. The last two are Warmroute's response headers, None behind anything else."""

    text: str
    usage: Usage
    sent_at_s: float
    """On the client's clock."""
    ttft_ms: float
    """From sending to the first byte that carried text; to the end of an answer that has none."""
    duration_ms: float
    worker: str | None
    predicted_cached_tokens: int | None


def open_session() -> aiohttp.ClientSession:
    """For any number of requests at once. Close it, or use it as an async context manager."""
    return aiohttp.ClientSession(timeout=TIMEOUT, connector=aiohttp.TCPConnector(limit=0))


class ChatClient:
    """Talks to one OpenAI-style server at `url` (`http://HOST:PORT`), through a session that its caller closes."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, clock_s: Callable[[], float] = time.perf_counter
    ) -> None:
        self._session, self._url, self._clock_s = session, url + "/v1/chat/completions", clock_s

    async def chat(self, fields: Mapping[str, Any]) -> Answer:
        """Send a chat request of these fields, streamed, and read its answer to the end. Raises RequestFailed."""
        body = orjson.dumps({**fields, "stream": True, "stream_options": {"include_usage": True}})
        sent_at_s = self._clock_s()
        try:
            async with self._session.post(
                self._url, data=body, headers={"content-type": "application/json"}
            ) as response:
                await _check(response)
                reading = _Reading(response.content_type)
                async for chunk in response.content.iter_any():
                    reading.feed(chunk, self._clock_s())
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise RequestFailed(f"{self._url}: {str(error) or type(error).__name__}") from error
        return reading.answer(sent_at_s, self._clock_s(), response.headers)


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        text = (await response.content.read(MAX_ERROR_BYTES)).decode("utf-8", "replace")
        raise RequestFailed(f"{response.url} answered {response.status}: {text}")


class _Reading:
    """An answer as it comes in."""

    def __init__(self, content_type: str) -> None:
        self._events = EventReader()
        self._peek = ResponsePeek(content_type)
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

    def answer(self, sent_at_s: float, now_s: float, headers: Mapping[str, str]) -> Answer:
        usage = self._peek.usage
        if not self._done or usage is None:
            raise RequestFailed(f"the answer ended without {'its usage' if self._done else '[DONE]'}")
        predicted = headers.get("x-warmroute-cached-tokens")
        first_text_at_s = now_s if self._first_text_at_s is None else self._first_text_at_s
        return Answer(
            text="".join(self._pieces),
            usage=usage,
            sent_at_s=sent_at_s,
            ttft_ms=(first_text_at_s - sent_at_s) * 1e3,
            duration_ms=(now_s - sent_at_s) * 1e3,
            worker=headers.get("x-warmroute-worker"),
            predicted_cached_tokens=None if predicted is None else int(predicted),
        )


def _text(data: bytes) -> str:
    """The text of a chunk of the first choice, empty for chunks without any. Raises RequestFailed for errors."""
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise RequestFailed(f"an event is not JSON: {data[:200]!r}") from error
    if "error" in chunk:
        raise RequestFailed(f"the answer broke off: {chunk['error'].get('message', chunk['error'])}")
    choices = chunk.get("choices")
    delta = choices[0].get("delta") if choices else None
    return (delta.get("content") or "") if delta else ""
