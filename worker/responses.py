"""Answers in the shape that users of OpenAI and vLLM expect: whole objects and the chunks of a stream.

Field for field vLLM's (vllm/entrypoints/openai/{chat_completion,completion}/serving.py); `usage` always reports
`prompt_tokens_details.cached_tokens`, as vLLM does with --enable-prompt-tokens-details.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from protocol.sse import Usage
from worker.choices import ChoiceDelta
from worker.generation_params import GenerationParams
from worker.request import TokenOutput

Json: TypeAlias = dict[str, Any]

LOWEST_LOGPROB = -9999.0  # JSON knows no -inf


@dataclass(frozen=True, slots=True)
class Envelope:
    """What all chunks of one answer share. `prompts` are the token ids, for clients that ask for them."""

    response_id: str
    created_s: int
    model: str
    params: GenerationParams
    prompts: tuple[tuple[int, ...], ...]
    tokenizer: Any


class AnswerForm(Protocol):
    """How an endpoint's answers look."""

    @property
    def wants_tokens(self) -> bool:
        """Whether chunks say more of their tokens than the text."""

    def opening(self) -> Iterator[Json]:
        """The chunks to send before the first delta."""

    def chunk(self, delta: ChoiceDelta) -> Json: ...

    def usage_chunk(self, usage: Usage) -> Json:
        """The last chunk of a stream whose client asked for the usage."""

    def whole(self, choices: Sequence[ChoiceDelta], usage: Usage) -> Json: ...


class ChatForm:
    """/v1/chat/completions."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self.wants_tokens = _wants_tokens(envelope.params)

    def opening(self) -> Iterator[Json]:
        """Each choice begins with its role; the very first chunk carries the prompt's token ids if they are wanted."""
        for index in range(self._envelope.params.n):
            choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
            chunk = self._chunk([choice | {"finish_reason": None}])
            if index == 0 and self._envelope.params.return_token_ids:
                chunk["prompt_token_ids"] = self._envelope.prompts[0]
            yield chunk

    def chunk(self, delta: ChoiceDelta) -> Json:
        return self._chunk([self._choice(delta, "delta", {"content": delta.text})])

    def usage_chunk(self, usage: Usage) -> Json:
        return self._chunk([]) | {"usage": usage_json(usage)}

    def whole(self, choices: Sequence[ChoiceDelta], usage: Usage) -> Json:
        answer = _head(self._envelope, "chat.completion")
        answer["choices"] = [
            self._choice(choice, "message", {"role": "assistant", "content": choice.text}) for choice in choices
        ]
        answer["usage"] = usage_json(usage)
        if self._envelope.params.return_token_ids:
            answer["prompt_token_ids"] = self._envelope.prompts[0]
        return answer

    def _chunk(self, choices: list[Json]) -> Json:
        return _head(self._envelope, "chat.completion.chunk") | {"choices": choices}

    def _choice(self, delta: ChoiceDelta, key: str, message: Json) -> Json:
        wanted = self._envelope.params.sampling.logprobs is not None and delta.tokens
        logprobs = {"content": [self._logprob(token) for token in delta.tokens]} if wanted else None
        return {"index": delta.index, key: message, "logprobs": logprobs} | _ending(self._envelope.params, delta)

    def _logprob(self, token: TokenOutput) -> Json:
        top = [self._alternative(token_id, logprob) for token_id, logprob in token.top_logprobs]
        return self._alternative(token.token_id, token.logprob) | {"top_logprobs": top}

    def _alternative(self, token_id: int | None, logprob: float | None) -> Json:
        text = _token_text(self._envelope, token_id)
        return {"token": text, "logprob": _finite(logprob), "bytes": list(text.encode())}


class CompletionForm:
    """/v1/completions: choice `index` belongs to prompt `index // n`."""

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope
        self.wants_tokens = _wants_tokens(envelope.params)
        self._text_offsets: dict[int, int] = {}  # of each choice's next token; as many as there are choices
        self._opened: set[int] = set()  # likewise

    def opening(self) -> Iterator[Json]:
        yield from ()

    def chunk(self, delta: ChoiceDelta) -> Json:
        return self._head() | {"choices": [self._choice(delta)]}

    def usage_chunk(self, usage: Usage) -> Json:
        return self._head() | {"choices": [], "usage": usage_json(usage)}

    def whole(self, choices: Sequence[ChoiceDelta], usage: Usage) -> Json:
        return self._head() | {"choices": [self._choice(choice) for choice in choices], "usage": usage_json(usage)}

    def _head(self) -> Json:
        return _head(self._envelope, "text_completion")

    def _choice(self, delta: ChoiceDelta) -> Json:
        params = self._envelope.params
        logprobs = self._logprobs(delta) if params.sampling.logprobs is not None and delta.tokens else None
        choice = {"index": delta.index, "text": delta.text, "logprobs": logprobs} | _ending(params, delta)
        if params.return_token_ids and delta.index not in self._opened:
            self._opened.add(delta.index)
            choice["prompt_token_ids"] = self._envelope.prompts[delta.index // params.n]
        return choice

    def _logprobs(self, delta: ChoiceDelta) -> Json:
        texts = [_token_text(self._envelope, token.token_id) for token in delta.tokens]
        offsets, end = [], self._text_offsets.get(delta.index, 0)
        for text in texts:
            offsets.append(end)
            end += len(text)
        self._text_offsets[delta.index] = end
        return {
            "text_offset": offsets,
            "token_logprobs": [_finite(token.logprob) for token in delta.tokens],
            "tokens": texts,
            "top_logprobs": [self._top(token) for token in delta.tokens],
        }

    def _top(self, token: TokenOutput) -> dict[str, float]:
        """The alternatives and the chosen token, which makes one more than was asked for when it is none of them."""
        pairs = [*token.top_logprobs, (token.token_id, token.logprob)]
        return {_token_text(self._envelope, token_id): _finite(logprob) for token_id, logprob in pairs}


def usage_json(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _wants_tokens(params: GenerationParams) -> bool:
    return params.return_token_ids or params.sampling.logprobs is not None


def _head(envelope: Envelope, kind: str) -> Json:
    return {
        "id": envelope.response_id,
        "object": kind,
        "created": envelope.created_s,
        "model": envelope.model,
    }


def _ending(params: GenerationParams, delta: ChoiceDelta) -> Json:
    ending: Json = {"finish_reason": delta.finish_reason}
    if delta.finish_reason is not None:
        ending["stop_reason"] = delta.stop_reason
    if params.return_token_ids:
        ending["token_ids"] = [token.token_id for token in delta.tokens]
    return ending


def _token_text(envelope: Envelope, token_id: int | None) -> str:
    if envelope.params.tokens_as_ids:
        return f"token_id:{token_id}"
    text: str = envelope.tokenizer.decode([token_id])
    return text


def _finite(logprob: float | None) -> float:
    return LOWEST_LOGPROB if logprob is None else max(logprob, LOWEST_LOGPROB)
