"""How prompts that a trace holds as text become tokens: by a model's tokenizer, or each character a token."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import orjson

from protocol.requests import chat_request, completion_request
from replay.traces.trace import Chat

if TYPE_CHECKING:
    from protocol.prompts import PromptEncoder  # brings transformers, which takes seconds to import


class TextTokens(Protocol):
    """Errors are ValueErrors or protocol.errors.ApiErrors."""

    def prompt(self, prompt: str | Chat) -> Sequence[int]: ...

    def answer(self, text: str) -> int:
        """How many tokens it has."""
        ...


class Characters:
    """A token for each character, as code points: no tokenizer needed, lengths about four times a real one's."""

    def prompt(self, prompt: str | Chat) -> Sequence[int]:
        text = prompt if isinstance(prompt, str) else _transcript(prompt)
        return [ord(character) for character in text]

    def answer(self, text: str) -> int:
        return len(text)


class ModelTokens:
    """The tokens that an engine serving this model sees, chat template included."""

    def __init__(self, encoder: "PromptEncoder") -> None:
        self._encoder = encoder

    @classmethod
    def load(cls, model: str) -> Self:
        """Of a local directory or a hub name; ValueError where there is no tokenizer."""
        from protocol.prompts import PromptEncoder

        return cls(PromptEncoder.load(model))

    def prompt(self, prompt: str | Chat) -> Sequence[int]:
        if isinstance(prompt, str):
            [tokens] = self._encoder.encode(completion_request({"prompt": prompt}))
        else:
            [tokens] = self._encoder.encode(chat_request(_fields(prompt)))
        return tokens

    def answer(self, text: str) -> int:
        if not text:
            return 0
        [tokens] = self._encoder.encode(completion_request({"prompt": text, "add_special_tokens": False}))
        return len(tokens)


def _fields(chat: Chat) -> dict[str, Any]:
    fields: dict[str, Any] = {"messages": list(chat.messages)}
    return fields | {"tools": list(chat.tools)} if chat.tools else fields


def _transcript(chat: Chat) -> str:
    """All that a template would show, as JSON lines: any form will do that grows at its end when the chat does."""
    return "".join(orjson.dumps(item).decode() + "\n" for item in (*chat.tools, *chat.messages))
