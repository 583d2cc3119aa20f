"""Chats to token ids, of which only what is new is validated, printed by the template and tokenized."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import jinja2

from protocol.chat_template import iterates_over_content, knows_developer_role
from protocol.conversation import Message, conversation
from protocol.message_template import MessageTemplate, NotByMessage
from protocol.prompt_tokens import PromptTokens
from protocol.segments import SegmentTokenizer, TokenizedText


@dataclass(frozen=True, slots=True)
class Template:
    """A chat template and what is known of it. `by_message` is None where it has to print whole conversations."""

    source: str
    wants_parts: bool
    knows_developer: bool
    by_message: MessageTemplate | None

    @classmethod
    def examined(cls, source: str) -> "Template":
        try:
            wants_parts = iterates_over_content(source)
            by_message = MessageTemplate(source)
        except jinja2.TemplateSyntaxError:  # rendering will say what is wrong with it
            return cls(source, False, False, None)
        except NotByMessage:
            by_message = None
        return cls(source, wants_parts, knows_developer_role(source), by_message)


class Printer:
    """Prints chats that have all but their messages in common, by a template that prints message by message."""

    def __init__(self, template: Template, arguments: dict[str, Any]) -> None:
        assert template.by_message is not None
        self.template, self.by_message = template, template.by_message
        self._variables = self.by_message.variables(arguments)

    def seen(self, messages: Sequence[Mapping[str, Any]]) -> list[Message]:
        """The messages as the template sees them."""
        seen = conversation(messages, content_as_parts=self.template.wants_parts)
        return [_as_transformers_does(each) for each in seen]

    def print(self, seen: Sequence[Message], silent: int = 0) -> list[str]:
        """What comes before the messages, all of them but the first `silent`, and what comes behind."""
        return self.by_message.pieces(seen, self._variables, silent)


class PrintedChat(NamedTuple):
    """A chat that was printed and tokenized: `head`, its first messages, seen by the template wherever it likes;
    what is printed `before` any message; the characters at which messages end in the text; and its tokens."""

    encoder: "ChatEncoder"
    printer: Printer
    head: list[Message]
    before: str
    text_ends: "array[int]"
    text: TokenizedText
    prompt: PromptTokens

    @property
    def size_bytes(self) -> int:
        """With the hashes of blocks of 16 tokens."""
        return self.text.size_bytes + 8 * len(self.text_ends) + 4 * len(self.prompt)

    def continuable(self, messages: int) -> int:
        template = self.printer.by_message
        count = min(messages, len(self.text_ends) - template.looks_at_last)
        count -= (count - template.head_messages) % 2  # the template may tell odd places from even ones
        return count if count >= template.head_messages else 0


class ChatEncoder:
    """Encodes with one tokenizer. Raises whatever is wrong with a chat. Safe to use from several threads."""

    def __init__(self, segments: SegmentTokenizer) -> None:
        self._segments = segments

    def begun(self, printer: Printer, messages: Sequence[Mapping[str, Any]]) -> PrintedChat:
        """Of a whole chat."""
        seen = printer.seen(messages)
        before, *texts = printer.print(seen)
        text = self._segments.encode("".join((before, *texts)))
        text_ends = array("Q", accumulate(map(len, texts[:-1]), initial=len(before)))[1:]
        head = seen[: printer.by_message.head_messages]
        return PrintedChat(self, printer, head, before, text_ends, text, PromptTokens(text.token_ids))

    def continued(self, known: PrintedChat, count: int, messages: Sequence[Mapping[str, Any]]) -> PrintedChat | None:
        """Of one that begins with the `count` first messages of a known one. None where it would begin differently."""
        if not messages and known.printer.by_message.looks_at_last:
            return None
        before, *texts = known.printer.print([*known.head, *known.printer.seen(messages)], len(known.head))
        if before != known.before:
            return None  # a template may print the date
        chars = known.text_ends[count - 1]
        text = self._segments.extend(known.text, chars, "".join(texts))
        text_ends = known.text_ends[:count] + array("Q", accumulate(map(len, texts[:-1]), initial=chars))[1:]
        prompt = PromptTokens(text.token_ids, known.prompt, text.taken_over)
        return PrintedChat(self, known.printer, known.head, before, text_ends, text, prompt)


def _as_transformers_does(message: Message) -> Message:
    """What `apply_chat_template` does to a message before the template sees it."""
    present = {key: value for key, value in message.items() if value is not None}
    reasoning = present.get("reasoning_content")
    return present if reasoning is None else {"thinking": reasoning, **present}
