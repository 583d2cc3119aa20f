"""From an OpenAI request to what the core routes: the prompt's token ids, exactly as the engine will see them.

Where there is no tokenizer, or the prompt is more than text, it is its JSON, four bytes a token: enough to tell what
two prompts have in common, though not what an engine's events are about.
"""

import asyncio
import logging
from array import array
from collections.abc import Iterable

import orjson

from protocol.errors import InvalidRequest
from protocol.prompt_tokens import PromptTokens
from protocol.prompts import PromptEncoder
from protocol.requests import ChatRequest, CompletionRequest
from router.records import ModelCard, RouteRequest

BYTES_PER_TOKEN = 4
"""Of a prompt that cannot be tokenized, and of other bodies."""
INLINE_BYTES = 16 << 10
"""New text up to here is tokenized on the event loop (a few ms); more of it in a thread, so that no stream stutters."""

log = logging.getLogger(__name__)


class PromptReader:
    """Has one encoder for each model that the workers serve, or the reason why it has none."""

    def __init__(self, tokenizer: str | None) -> None:
        self._tokenizer = tokenizer
        self._encoders: dict[str, PromptEncoder | str] = {}  # by model id; bounded by what the workers serve
        self._loading = asyncio.Lock()

    @property
    def problems(self) -> dict[str, str]:
        """Why requests for a model are placed by their text, by model."""
        return {model: encoder for model, encoder in self._encoders.items() if isinstance(encoder, str)}

    async def learn(self, models: Iterable[ModelCard]) -> None:
        """Load the tokenizers of `models`: the one that the user named, else from the root that the worker names."""
        cards = {card.id: card for card in models}
        for card in cards.values():
            base = cards.get(card.parent, card) if card.parent else card  # an adapter talks as its base model does
            async with self._loading:
                if not isinstance(self._encoders.get(card.id), PromptEncoder):
                    self._encoders[card.id] = await self._load(card.id, self._tokenizer or base.root or base.id)

    async def _load(self, model: str, source: str) -> PromptEncoder | str:
        try:
            return await asyncio.to_thread(PromptEncoder.load, source)
        except Exception as error:  # whatever a tokenizer's files can do wrong
            log.warning(
                "model %s is placed by text: no tokenizer from %r (%s); name one with --tokenizer",
                model,
                source,
                error,
            )
            return f"no tokenizer for {model!r} from {source!r}: {error}"

    async def read(
        self, request: ChatRequest | CompletionRequest, body_bytes: int, request_id: str, session: str | None = None
    ) -> RouteRequest:
        """Never fails: a prompt that cannot be tokenized is placed by its text, and the decision says why.

        `session` is the client's name for its session from outside the body; else the body's `session_id` or `user`.
        """
        session, follow_up = session or _session(request), _follow_up(request)
        tokens = await self._prompts(request, body_bytes)
        unknown = tokens if isinstance(tokens, str) else None
        prompts = _texts(request) if isinstance(tokens, str) else tokens
        return RouteRequest(
            request_id,
            request.model,
            sum(map(len, prompts)),
            prompts,
            request.cache_salt,
            unknown_prompt=unknown,
            session=session,
            follow_up=follow_up,
        )

    async def _prompts(
        self, request: ChatRequest | CompletionRequest, body_bytes: int
    ) -> tuple[PromptTokens, ...] | str:
        """Or the reason why there are none."""
        encoder = self._encoder(request.model)
        if isinstance(encoder, str):
            return encoder
        try:
            encoding = encoder.begin(request, body_bytes)
            if encoding.new_bytes <= INLINE_BYTES:
                return encoding.finish()
            return await asyncio.to_thread(encoding.finish)
        except InvalidRequest as error:  # the engine judges; its template may know more than ours
            return error.message

    def other(self, model: str | None, body_bytes: int, request_id: str, reason: str) -> RouteRequest:
        """A request of whose body nothing is known."""
        return RouteRequest(request_id, model, body_bytes // BYTES_PER_TOKEN, unknown_prompt=reason)

    def _encoder(self, model: str | None) -> PromptEncoder | str:
        if model is None and len(self._encoders) == 1:
            return next(iter(self._encoders.values()))
        return self._encoders.get(model or "", f"the model {model!r} is not known yet")


def _texts(request: ChatRequest | CompletionRequest) -> tuple[PromptTokens, ...]:
    """Tools come first, as templates have them: they change seldom, and each turn adds messages."""
    if isinstance(request, ChatRequest):
        return (_cut_up(orjson.dumps((request.fields.get("tools"), request.messages))),)
    return tuple(_cut_up(orjson.dumps(prompt)) for prompt in request.prompts)


def _cut_up(text: bytes) -> PromptTokens:
    return PromptTokens(array("I", text[: len(text) // BYTES_PER_TOKEN * BYTES_PER_TOKEN]))


def _session(request: ChatRequest | CompletionRequest) -> str | None:
    """vLLM's body field, then OpenAI's."""
    named = (request.fields.get(name) for name in ("session_id", "user"))
    return next((name for name in named if isinstance(name, str) and name), None)


def _follow_up(request: ChatRequest | CompletionRequest) -> bool | None:
    """A chat that holds an earlier answer continues a conversation; of a completion nobody knows."""
    if isinstance(request, CompletionRequest):
        return None
    return any(message.get("role") == "assistant" for message in request.messages)
