"""Prompts that cannot be tokenized, as their JSON, four bytes a token: enough to tell what two of them have in common.

Tools come first, as templates have them: they change seldom, and each turn adds messages. Each part is filled up with
spaces to whole tokens, so that those of a message are the same wherever it stands.
"""

from array import array
from typing import NamedTuple

import orjson

from protocol.chat_reader import Chat
from protocol.prompt_tokens import PromptTokens
from protocol.requests import CompletionRequest

BYTES_PER_TOKEN = 4


class ChatText(NamedTuple):
    """A chat's text; before and behind each message, how many of its tokens there are."""

    ends: "array[int]"
    prompt: PromptTokens

    @property
    def size_bytes(self) -> int:
        """With the hashes of blocks of 16 tokens."""
        return 8 * len(self.ends) + 8 * len(self.prompt)

    def continuable(self, messages: int) -> int:
        return messages


def chat_text(chat: Chat) -> ChatText:
    known = chat.known.transcript if chat.known else None
    if isinstance(known, ChatText):
        earlier, ends = known.prompt, known.ends[: chat.known_messages + 1]
        tokens = earlier.token_ids[: ends[-1]]
    else:
        chat, earlier = chat.whole(), None
        tokens = array("I", _padded(chat.request.fields.get("tools")))
        ends = array("Q", (len(tokens),))
    shared = len(tokens)
    texts = [_padded(message) for message in chat.request.messages]
    tokens.frombytes(b"".join(texts))
    for text in texts:
        ends.append(ends[-1] + len(text) // BYTES_PER_TOKEN)
    return ChatText(ends, PromptTokens(tokens, earlier, shared))


def completion_texts(request: CompletionRequest) -> tuple[PromptTokens, ...]:
    return tuple(PromptTokens(array("I", _padded(prompt))) for prompt in request.prompts)


def _padded(value: object) -> bytes:
    text = orjson.dumps(value)
    return text + b" " * (-len(text) % BYTES_PER_TOKEN)
