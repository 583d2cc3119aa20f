"""Chats to token ids, of which only what is new is validated, printed by the template and tokenized."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import jinja2
import orjson

from protocol.chat_template import iterates_over_content, knows_developer_role
from protocol.conversation import Message, conversation
from protocol.conversation_cache import Conversation, ConversationCache
from protocol.message_template import MessageTemplate, NotByMessage
from protocol.prompt_tokens import PromptTokens
from protocol.segments import SegmentTokenizer, TokenizedText


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template and what is known of it. `by_message` is None where it has to print whole conversations."""

    number: int
    source: str
    wants_parts: bool
    knows_developer: bool
    by_message: MessageTemplate | None

    @classmethod
    def examined(cls, source: str, number: int) -> "Template":
        try:
            wants_parts = iterates_over_content(source)
            by_message = MessageTemplate(source)
        except jinja2.TemplateSyntaxError:  # rendering will say what is wrong with it
            return cls(number, source, False, False, None)
        except NotByMessage:
            by_message = None
        return cls(number, source, wants_parts, knows_developer_role(source), by_message)


@dataclass(frozen=True, slots=True)
class Chat:
    """A chat to encode: `key` is all of it in canonical form, `known` the conversation that its first `known_messages`
    come from, if any."""

    printer: MessageTemplate
    wants_parts: bool
    messages: Sequence[Mapping[str, Any]]
    arguments: dict[str, Any]
    key: bytes
    header_bytes: int
    known: Conversation | None
    known_messages: int

    @property
    def new_bytes(self) -> int:
        return len(self.key) - (self.known.message_ends[self.known_messages - 1] if self.known else self.header_bytes)

    def printed(self, first: int) -> list[str]:
        """Head, messages and tail as the template prints them, with messages from the template's head to `first` left
        out."""
        head = self.messages[: self.printer.head_messages]
        rest = self.messages[max(first, len(head)) :]
        messages = [
            _as_transformers_does(each) for each in conversation((*head, *rest), content_as_parts=self.wants_parts)
        ]
        return self.printer.pieces(messages, self.arguments)


class ChatEncoder:
    """Encodes with one tokenizer. Safe to use from several threads."""

    def __init__(self, segments: SegmentTokenizer, cache: ConversationCache) -> None:
        self._segments, self._cache = segments, cache

    def recall(
        self, template: Template, messages: Sequence[Mapping[str, Any]], options: object, arguments: dict[str, Any]
    ) -> Chat | None:
        """`arguments` go to the template; `options` is JSON that says what they are, and whose conversation this is.
        None for what only the plain path can encode."""
        printer = template.by_message
        if printer is None:
            return None
        header = orjson.dumps([template.number, options]) + b"\n"
        key = header + orjson.dumps(messages)[:-1]
        known, count = self._cache.longest(key) or (None, 0)
        count = min(count, len(messages) - printer.looks_at_last)
        count -= (count - printer.head_messages) % 2  # the template may tell odd places from even ones
        if known is None or count < printer.head_messages:
            known, count = None, 0
        new = known.message_ends[count - 1] if known else 0
        if not template.knows_developer and b'"role":"developer"' in key[new:]:
            return None  # such messages change others
        return Chat(printer, template.wants_parts, messages, arguments, key, len(header), known, count)

    def encode(self, chat: Chat) -> PromptTokens:
        """Raises whatever is wrong with the chat, sometimes in other words than the plain path."""
        found = self._continued(chat) or self._begun(chat)
        self._cache.keep(found)
        return found.prompt

    def _begun(self, chat: Chat) -> Conversation:
        pieces = chat.printed(0)
        text = self._segments.encode("".join(pieces))
        text_ends = array("Q", accumulate(map(len, pieces[1:-1]), initial=len(pieces[0])))[1:]
        message_ends = _message_ends(chat.header_bytes, chat.messages)
        return _conversation(chat, message_ends, text_ends, text, PromptTokens(text.token_ids))

    def _continued(self, chat: Chat) -> Conversation | None:
        """None where there is nothing to continue, or it would now begin differently."""
        known, count = chat.known, chat.known_messages
        if known is None:
            return None
        pieces = chat.printed(count)
        head, rest = pieces[: 1 + chat.printer.head_messages], pieces[1 + chat.printer.head_messages :]
        if "".join(head) != known.text.text[: known.text_ends[chat.printer.head_messages - 1]]:
            return None  # a template may print the date
        chars = known.text_ends[count - 1]
        text = self._segments.extend(known.text, chars, "".join(rest))
        text_ends = known.text_ends[:count] + array("Q", accumulate(map(len, rest[:-1]), initial=chars))[1:]
        new_ends = _message_ends(known.message_ends[count - 1], chat.messages[count:])
        prompt = PromptTokens(text.token_ids, known.prompt, text.taken_over)
        return _conversation(chat, known.message_ends[:count] + new_ends, text_ends, text, prompt)


def _conversation(
    chat: Chat, message_ends: "array[int]", text_ends: "array[int]", text: TokenizedText, prompt: PromptTokens
) -> Conversation:
    final = len(message_ends) - chat.printer.looks_at_last
    return Conversation(chat.key, message_ends[:final], text_ends[:final], text, prompt)


def _message_ends(start: int, messages: Sequence[Mapping[str, Any]]) -> "array[int]":
    """Where in a key each message ends, one byte ("[" or ",") before each."""
    return array("Q", accumulate((1 + len(orjson.dumps(each)) for each in messages), initial=start))[1:]


def _as_transformers_does(message: Message) -> Message:
    """What `apply_chat_template` does to a message before the template sees it."""
    present = {key: value for key, value in message.items() if value is not None}
    reasoning = present.get("reasoning_content")
    return present if reasoning is None else {"thinking": reasoning, **present}
