"""One request under way, free of HTTP: prompts become sequences in the engine, their tokens deltas of the choices."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from protocol.errors import ApiError
from protocol.sse import Usage
from worker.choices import Choice, ChoiceDelta, merged
from worker.detokenizer import WindowDecoder
from worker.engine import BadPrompt
from worker.engine_thread import EngineThread, OutputStream
from worker.generation_params import GenerationParams
from worker.metrics import Metrics
from worker.request import EngineRequest, FinishReason, TokenOutput


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's token ids, and its text where the client wants it echoed."""

    token_ids: tuple[int, ...]
    echo: str = ""


@dataclass(slots=True)
class _Sequence:
    """Choice `choice.index` continues prompt `choice.index // n`."""

    choice: Choice
    prompt_tokens: int
    is_first_of_prompt: bool
    last_token_s: float | None = None


class Generation:
    """Iterate over the deltas inside `async with`; leaving it ends what still runs. `usage` counts along."""

    def __init__(self, sequences: dict[str, _Sequence], outputs: OutputStream, metrics: Metrics) -> None:
        self._sequences = sequences
        self._outputs = outputs
        self._metrics = metrics
        self._began_s = time.monotonic()
        self._prompt_tokens = sum(each.prompt_tokens for each in sequences.values() if each.is_first_of_prompt)
        self._completion_tokens = 0
        self._cached_tokens = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        reason = FinishReason.ERROR if isinstance(error, ApiError) else FinishReason.ABORT
        for request_id in self._outputs.running:
            self._outputs.abort(request_id)
            if not isinstance(error, BadPrompt):  # which never began
                self._metrics.finished(reason, time.monotonic() - self._began_s)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChoiceDelta:
        output = await anext(self._outputs)
        sequence = self._sequences[output.request_id]
        self._count(sequence, output)
        delta = sequence.choice.add(output)
        if delta.finish_reason is not None:
            self._outputs.abort(output.request_id)  # the engine knows nothing of stop strings
            self._metrics.finished(delta.finish_reason, time.monotonic() - self._began_s)
        return delta

    @property
    def usage(self) -> Usage:
        """Of what was generated so far."""
        return Usage(self._prompt_tokens, self._completion_tokens, self._cached_tokens)

    async def whole(self) -> list[ChoiceDelta]:
        """All choices, complete, in the order of their index."""
        deltas: dict[int, list[ChoiceDelta]] = {}
        async for delta in self:
            deltas.setdefault(delta.index, []).append(delta)
        return [merged(deltas[index]) for index in sorted(deltas)]

    def _count(self, sequence: _Sequence, output: TokenOutput) -> None:
        now_s = time.monotonic()
        self._completion_tokens += 1
        if sequence.last_token_s is not None:
            self._metrics.next_token(now_s - sequence.last_token_s)
        else:
            self._metrics.first_token(now_s - self._began_s, sequence.prompt_tokens)
            if sequence.is_first_of_prompt:  # for the further choices of a prompt the first one filled the cache
                self._cached_tokens += output.cached_tokens
        sequence.last_token_s = now_s


class Generator:
    """Starts generations on one engine with one model's tokenizer."""

    def __init__(self, engine: EngineThread, tokenizer: Any, metrics: Metrics) -> None:
        self._engine = engine
        self._decoder = WindowDecoder(tokenizer)
        self._metrics = metrics

    def start(self, prompts: Sequence[Prompt], params: GenerationParams, cache_salt: str | None) -> Generation:
        """`params.n` choices for each prompt. Raises ApiError if the engine takes none or more is asked than fits."""
        requests: list[EngineRequest] = []
        sequences: dict[str, _Sequence] = {}
        for place, prompt in enumerate(prompts):
            for number in range(params.n):
                sampling = params.sampling_for(number, len(prompt.token_ids))
                request = EngineRequest(uuid4().hex, prompt.token_ids, sampling, cache_salt=cache_salt)
                choice = Choice(place * params.n + number, params, self._decoder, prompt.echo)
                requests.append(request)
                sequences[request.request_id] = _Sequence(choice, len(prompt.token_ids), number == 0)
        return Generation(sequences, self._engine.generate(requests), self._metrics)
