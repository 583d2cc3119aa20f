"""A client that puts load on an endpoint and measures the answers, of which it reads as little as it can.

Prompts of which a trace has only hashes go as token ids to /v1/completions, or as text to /v1/chat/completions, for
routers that compare texts.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import aiohttp
import numpy as np
import orjson
from numpy.typing import NDArray

from protocol.sse import EventReader, ResponsePeek, Usage
from replay.client import DONE, JSON_BODY, STREAMED, complete, parsed, stream, tokens_in
from replay.live.api import Api
from replay.traces.trace import Chat

TAIL_BYTES = 4096
"""The last two events, the usage and [DONE], fit in several times."""

SESSION_HEADER = "x-session-id"  # vLLM's, and our router's

SendablePrompt: TypeAlias = str | Chat | NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer. Times are the client's clock; an answer without tokens has its first one at its end. `worker` and
    `predicted_cached_tokens` are None behind anything but Warmroute's router."""

    usage: Usage
    first_token_s: float
    ended_s: float
    worker: str | None
    predicted_cached_tokens: int | None

    def since(self, zero_s: float) -> "TimedAnswer":
        """With times that count from `zero_s`."""
        return replace(self, first_token_s=self.first_token_s - zero_s, ended_s=self.ended_s - zero_s)


class LoadClient:
    """One model at `url`, asked through `api` and a session that the caller closes."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        api: Api,
        model: str,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.api, self.clock_s = api, clock_s
        self._session, self._url, self._model = session, url + api.path, model

    def body(self, prompt: SendablePrompt, answer_tokens: int) -> bytes:
        """A request for an answer of exactly so many tokens."""
        fields = {
            "model": self._model,
            **(_chat_fields(prompt) if self.api is Api.CHAT else {"prompt": prompt}),
            "max_tokens": answer_tokens,
            "ignore_eos": True,
            "temperature": 0,
            **STREAMED,
        }
        return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)

    async def send(self, body: bytes, session: str | None = None) -> TimedAnswer:
        """`session` tells routers what belongs together. Raises RequestFailed."""
        reading = Reading()
        headers = JSON_BODY if session is None else {**JSON_BODY, SESSION_HEADER: session}
        exchange = await stream(self._session, self._url, body, reading.feed, self.clock_s, headers)
        return TimedAnswer(
            usage=reading.usage(),
            first_token_s=exchange.ended_s if reading.first_token_s is None else reading.first_token_s,
            ended_s=exchange.ended_s,
            worker=exchange.worker,
            predicted_cached_tokens=exchange.predicted_cached_tokens,
        )


class Reading:
    """An answer as it comes in. Its events are parsed up to the first token, and then only the last ones: to parse all
    of them takes as long as to receive them, and nothing more is asked of them."""

    def __init__(self) -> None:
        self._events = EventReader()
        self._tail = b""
        self.first_token_s: float | None = None

    def feed(self, chunk: bytes, now_s: float) -> None:
        if self.first_token_s is None and any(map(_brings_token, self._events.feed(chunk))):
            self.first_token_s = now_s
        self._tail = (self._tail + chunk)[-TAIL_BYTES:]

    def usage(self) -> Usage:
        """At the answer's end. Raises RequestFailed for an answer that is not whole."""
        peek = ResponsePeek("text/event-stream")
        peek.feed(self._tail)
        events = EventReader().feed(self._tail)
        if peek.usage is None:
            for event in events:
                _chunk(event)  # one of them may be an error
        return complete(DONE in events, peek.usage)


def _brings_token(event: bytes) -> bool:
    return tokens_in(_chunk(event)) > 0


def _chunk(event: bytes) -> dict[str, Any]:
    return {} if event == DONE else parsed(event)


def _chat_fields(prompt: SendablePrompt) -> dict[str, Any]:
    if isinstance(prompt, Chat):
        return {"messages": prompt.messages, **({"tools": prompt.tools} if prompt.tools else {})}
    assert isinstance(prompt, str), "a chat has no token ids"
    return {"messages": [{"role": "user", "content": prompt}]}
