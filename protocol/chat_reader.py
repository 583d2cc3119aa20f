"""Chats from bodies, of which only what is new is parsed.

What a JSON parser makes of some bytes depends on those before only by the state that they leave it in. So messages that
are known to stand in the list, one whole message after the other, may be left out, and the rest means what it meant.
"""

import json
import re
from array import array
from itertools import accumulate, pairwise
from secrets import token_hex
from typing import Any, NamedTuple

import orjson

from protocol.conversation_cache import MAX_BYTES, Conversation, ConversationCache, Transcript
from protocol.errors import InvalidRequest
from protocol.requests import ChatRequest, chat_request, parse_chat, parse_object

_LIST = re.compile(rb'"messages"[ \t\r\n]*:[ \t\r\n]*(?=\[)')
_VALUES = json.JSONDecoder(parse_int=str, parse_float=str)  # to find where they end; numbers may have any length
_OPTIONS = (
    "model",
    "cache_salt",  # whoever has another must not learn what is known here
    "tools",
    "documents",
    "reasoning_effort",
    "chat_template_kwargs",
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "add_special_tokens",
)
"""The fields that say what becomes of the messages."""


class Chat(NamedTuple):
    """A chat that begins with the first `known_messages` of a `known` conversation; `request` has only those behind.

    `from_list` is the body from the list of messages on, as far as one can tell without parsing it. `first_answer` is
    the place of an assistant's first message.
    """

    request: ChatRequest
    first_answer: int | None
    body: bytes
    from_list: bytes
    known: Conversation | None = None
    known_messages: int = 0

    @property
    def new_bytes(self) -> int:
        return len(self.from_list) - self.known.message_ends[self.known_messages - 1] if self.known else len(self.body)

    def whole(self) -> "Chat":
        """The same with all of its messages in `request`."""
        return self._replace(request=parse_chat(self.body), known=None, known_messages=0) if self.known else self


class ChatReader:
    """Reads chats, and remembers what became of them. Safe to use from several threads."""

    def __init__(self, max_cached_bytes: int = MAX_BYTES) -> None:
        self._cache = ConversationCache(max_cached_bytes)
        self._mark = token_hex(16)  # in the place of messages; nobody can guess it

    def read(self, body: bytes) -> Chat:
        """Raises InvalidRequest as `parse_chat` does."""
        found = _LIST.search(body)
        from_list = body[found.end() :] if found else b""
        known = self._cache.longest(from_list)
        continued = self._continued(body, from_list, *known) if known else None
        if continued is not None:
            return continued
        request = parse_chat(body)
        return Chat(request, _first_answer(request, 0), body, from_list)

    def keep(self, chat: Chat, transcript: Transcript) -> None:
        """What became of a chat."""
        ends = self._message_ends(chat)
        if ends:
            options = chat.known.options if chat.known else _options(chat.request)
            self._cache.keep(Conversation(chat.from_list[: ends[-1]], ends, options, chat.first_answer, transcript))

    def _continued(self, body: bytes, from_list: bytes, known: Conversation, common: int) -> Chat | None:
        """None where it does not continue that one, or is not as it should be."""
        count = known.transcript.continuable(common)
        if not count:
            return None
        try:
            fields = self._marked(body, from_list, b"[", known.message_ends[count - 1])
            messages = fields.get("messages")
            if not isinstance(messages, list) or messages[:1] != [self._mark]:
                return None  # that list is another's
            fields["messages"] = messages[1:]
            request = chat_request(fields, continued=True)
        except InvalidRequest:  # to be said of the whole
            return None
        if _options(request) != known.options:
            return None
        first_answer = known.first_answer
        if first_answer is None or first_answer >= count:
            first_answer = _first_answer(request, count)
        return Chat(request, first_answer, body, from_list, known, count)

    def _message_ends(self, chat: Chat) -> "array[int] | None":
        """Where each message ends in the list; None where that list is not the chat's messages."""
        known = chat.known.message_ends[: chat.known_messages] if chat.known else array("Q")
        start = known[-1] if known else 1
        try:
            text = chat.from_list[start:].decode()
            places = _places(text, len(chat.request.messages))
            if not text.isascii():
                places = list(accumulate(len(text[first:last].encode()) for first, last in pairwise([0, *places])))
            *ends, end = [start + place for place in places]
            if chat.known or self._marked(chat.body, chat.from_list, b"", end).get("messages") == self._mark:
                return known + array("Q", ends)
        except (InvalidRequest, RecursionError, ValueError):
            pass  # not even a list, or nested deeper than Python goes
        return None

    def _marked(self, body: bytes, from_list: bytes, before: bytes, end: int) -> dict[str, Any]:
        """What else is in a body, with the list to its byte `end` replaced by `before` and the mark."""
        head = body[: len(body) - len(from_list)]
        return parse_object(b'%b%b"%b"%b' % (head, before, self._mark.encode(), from_list[end:]))


def _options(request: ChatRequest) -> bytes:
    """What, beside the messages, matters for the prompt."""
    return orjson.dumps([request.fields.get(name) for name in _OPTIONS])


def _first_answer(request: ChatRequest, place: int) -> int | None:
    """`place` is that of the first message."""
    roles = [message["role"] for message in request.messages]
    return place + roles.index("assistant") if "assistant" in roles else None


def _places(text: str, objects: int) -> list[int]:
    """Where each of the next objects in a list ends, and where the list does."""
    places, place = [], 0
    for _ in range(objects):
        _, place = _VALUES.raw_decode(text, text.index("{", place))
        places.append(place)
    return [*places, text.index("]", place) + 1]
