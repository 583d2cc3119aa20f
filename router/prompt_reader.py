"""From an OpenAI request to what the core routes: the prompt's token ids, exactly as the engine will see them.

Where there is no tokenizer, or the prompt is more than text, its text stands in for them.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from protocol.chat_reader import Chat, ChatReader
from protocol.errors import InvalidRequest
from protocol.prompt_tokens import PromptTokens
from protocol.prompts import PromptEncoder
from protocol.requests import CompletionRequest, parse_completion
from router.records import ModelCard, RouteRequest
from router.text_encoder import BYTES_PER_TOKEN, chat_text, completion_texts

INLINE_BYTES = 16 << 10
"""New text up to here is tokenized on the event loop (a few ms); more of it in a thread, so that no stream stutters."""
REMEMBERED_TEXT_BYTES = 8 << 10
"""What has less text is read again in less time than it takes to remember it."""

log = logging.getLogger(__name__)


class PromptReader:
    """Has one encoder for each model that the workers serve, or the reason why it has none."""

    def __init__(self, tokenizer: str | None) -> None:
        self._tokenizer = tokenizer
        self._encoders: dict[str, PromptEncoder | str] = {}  # by model id; bounded by what the workers serve
        self._loading = asyncio.Lock()
        self._chats = ChatReader()

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

    async def chat(self, body: bytes, request_id: str, session: str | None = None) -> RouteRequest:
        """Raises InvalidRequest for what is no chat. A prompt that cannot be tokenized is placed by its text, and the
        decision says why.

        `session` is the client's name for its session from outside the body; else the body's `session_id` or `user`.
        """
        chat = self._chats.read(body)
        request, encoder = chat.request, self._encoder(chat.request.model)
        prompt = await self._encoded(encoder, chat) if isinstance(encoder, PromptEncoder) else encoder
        unknown = prompt if isinstance(prompt, str) else None
        if isinstance(prompt, str):
            text = chat_text(chat)
            if len(body) >= REMEMBERED_TEXT_BYTES:
                self._chats.keep(chat, text)
            prompt = text.prompt
        return RouteRequest(
            request_id,
            request.model,
            len(prompt),
            (prompt,),
            request.cache_salt,
            unknown,
            session or _session(request.fields),
            follow_up=chat.first_answer is not None,
        )

    async def _encoded(self, encoder: PromptEncoder, chat: Chat) -> PromptTokens | str:
        """Or the reason why it cannot be."""
        encoding = encoder.begin(chat)
        try:
            on_loop = encoding.new_bytes <= INLINE_BYTES
            prompt, printed = encoding.finish() if on_loop else await asyncio.to_thread(encoding.finish)
        except InvalidRequest as error:  # the engine judges; its template may know more than ours
            return error.message
        if printed is not None:
            self._chats.keep(chat, printed)
        return prompt

    async def completion(self, body: bytes, request_id: str, session: str | None = None) -> RouteRequest:
        """The same of a completion."""
        request = parse_completion(body)
        encoder = self._encoder(request.model)
        prompts = await _prompts(encoder, request, len(body)) if isinstance(encoder, PromptEncoder) else encoder
        unknown = prompts if isinstance(prompts, str) else None
        if isinstance(prompts, str):
            prompts = completion_texts(request)
        return RouteRequest(
            request_id,
            request.model,
            sum(map(len, prompts)),
            prompts,
            request.cache_salt,
            unknown,
            session or _session(request.fields),
        )

    def other(self, model: str | None, body_bytes: int, request_id: str, reason: str) -> RouteRequest:
        """A request of whose body nothing is known."""
        return RouteRequest(request_id, model, body_bytes // BYTES_PER_TOKEN, unknown_prompt=reason)

    def _encoder(self, model: str | None) -> PromptEncoder | str:
        if model is None and len(self._encoders) == 1:
            return next(iter(self._encoders.values()))
        return self._encoders.get(model or "", f"the model {model!r} is not known yet")


async def _prompts(
    encoder: PromptEncoder, request: CompletionRequest, body_bytes: int
) -> tuple[PromptTokens, ...] | str:
    """Or the reason why there are none."""
    try:
        if body_bytes <= INLINE_BYTES:
            return encoder.prompts(request)
        return await asyncio.to_thread(encoder.prompts, request)
    except InvalidRequest as error:
        return error.message


def _session(fields: Mapping[str, Any]) -> str | None:
    """vLLM's body field, then OpenAI's."""
    for name in ("session_id", "user"):
        session = fields.get(name)
        if isinstance(session, str) and session:
            return session
    return None
