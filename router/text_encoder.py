"""Prompts that cannot be tokenized, as their JSON, four bytes a token: enough to tell what two of them have in common.

Tools come first, as templates have them: they change seldom, and each turn adds messages. Spaces fill up
the last token.
"""

from array import array
from itertools import accumulate
from typing import NamedTuple

import orjson

from protocol.chat_reader import Chat
from protocol.prompt_tokens import PromptTokens
from protocol.requests import CompletionRequest

BYTES_PER_TOKEN = 4


class ChatText(NamedTuple):
    """A chat's text; the bytes at which its first message begins and each ends."""

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
        return _continued(known, chat)
    request = chat.whole().request
    texts = [orjson.dumps(request.fields.get("tools")), *map(orjson.dumps, request.messages)]
    return ChatText(array("Q", accumulate(map(len, texts))), PromptTokens(_tokens(b"".join(texts))))


def _continued(known: ChatText, chat: Chat) -> ChatText:
    ends, earlier = known.ends[: chat.known_messages + 1], known.prompt
    shared, begun = divmod(ends[-1], BYTES_PER_TOKEN)
    texts = list(map(orjson.dumps, chat.request.messages))
    ends.extend(accumulate(map(len, texts), initial=ends.pop()))
    rest = earlier.token_ids[shared : shared + 1].tobytes()[:begun] + b"".join(texts)
    return ChatText(ends, PromptTokens(earlier.token_ids[:shared] + _tokens(rest), earlier, shared))


def completion_texts(request: CompletionRequest) -> tuple[PromptTokens, ...]:
    return tuple(PromptTokens(_tokens(orjson.dumps(prompt))) for prompt in request.prompts)


def _tokens(text: bytes) -> "array[int]":
    return array("I", text + b" " * (-len(text) % BYTES_PER_TOKEN))
