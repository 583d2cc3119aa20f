"""A running engine, as far as a calibration needs one: it says when each token of its answers came."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import aiohttp
import numpy as np
import orjson
from numpy.typing import NDArray

from protocol.sse import EventReader, ResponsePeek, Usage
from replay.client import DONE, STREAMED, complete, parsed, stream, tokens_in
from replay.errors import RequestFailed

TokenIds: TypeAlias = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """When a request was sent and each token of its answer came, in seconds on one clock."""

    sent_s: float
    tokens_s: tuple[float, ...]


class Engine(Protocol):
    async def answer(self, prompts: Sequence[TokenIds], answer_tokens: int) -> list[TokenTimes]:
        """All prompts at once, each answered with so many tokens. Raises RequestFailed."""


class HttpEngine:
    """An OpenAI-compatible one at `url`, through a session that the caller closes."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._session, self._url, self._model, self._clock_s = session, url + "/v1/completions", model, clock_s

    async def answer(self, prompts: Sequence[TokenIds], answer_tokens: int) -> list[TokenTimes]:
        bodies = [self._body(prompt, answer_tokens) for prompt in prompts]
        try:
            async with asyncio.TaskGroup() as exchanges:
                tasks = [exchanges.create_task(self._exchange(body)) for body in bodies]
        except* RequestFailed as failures:
            raise RequestFailed(str(failures.exceptions[0])) from failures
        return [task.result() for task in tasks]

    def _body(self, prompt: TokenIds, answer_tokens: int) -> bytes:
        """With the ids of the answer's tokens, by which vLLM and our worker tell how many an event brings."""
        fields = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": answer_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "return_token_ids": True,
            **STREAMED,
        }
        return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)

    async def _exchange(self, body: bytes) -> TokenTimes:
        reading = _Reading()
        exchange = await stream(self._session, self._url, body, reading.feed, self._clock_s)
        usage = reading.usage()
        if usage.completion_tokens != len(reading.tokens_s):
            raise RequestFailed(
                f"{self._url}: the times of its tokens cannot be told, for its events bring {len(reading.tokens_s)} "
                f"tokens and its usage says {usage.completion_tokens}"
            )
        return TokenTimes(exchange.sent_s, tuple(reading.tokens_s))


class _Reading:
    """An answer as it comes in."""

    def __init__(self) -> None:
        self._events = EventReader()
        self._peek = ResponsePeek("text/event-stream")
        self._done = False
        self.tokens_s: list[float] = []

    def feed(self, chunk: bytes, now_s: float) -> None:
        self._peek.feed(chunk)
        for event in self._events.feed(chunk):
            if event == DONE:
                self._done = True
            else:
                self.tokens_s += [now_s] * tokens_in(parsed(event))

    def usage(self) -> Usage:
        return complete(self._done, self._peek.usage)
