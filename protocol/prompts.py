"""From a request to the token ids that the engine will see: chat template, then tokenizer, exactly as vLLM does it."""

import os
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from protocol.chat_encoder import ChatEncoder, PrintedChat, Printer, Template
from protocol.chat_reader import Chat
from protocol.conversation import conversation, developer_as_system, tool_definitions
from protocol.errors import InvalidRequest
from protocol.fields import boolean, wrong_value
from protocol.prompt_tokens import PromptTokens
from protocol.requests import ChatRequest, CompletionRequest
from protocol.segments import SegmentTokenizer

_NOT_FOR_TEMPLATES = {
    "chat_template",
    "conversation",
    "max_length",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "sanitize_control_tokens",
    "tokenize",
    "tokenizer_kwargs",
    "tools",
    "truncation",
}
"""Names that `apply_chat_template` would take for its own arguments."""

_ONLY_PLAIN = ("chat_template", "continue_final_message", "add_special_tokens")
"""Fields that transformers itself has to see to."""


class Encoding(NamedTuple):
    """A chat on its way to tokens: `new_bytes` of it have to be tokenized, which `finish` does. It also gives what a
    next turn may go on from."""

    new_bytes: int
    finish: Callable[[], tuple[PromptTokens, PrintedChat | None]]


class PromptEncoder:
    """Encodes with one model's tokenizer and its chat template. Safe to use from several threads."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._segments = SegmentTokenizer(tokenizer)
        self._chats = ChatEncoder(self._segments)
        self._special_tokens = dict(tokenizer.special_tokens_map)
        self._templates: dict[str, Template] = {}  # by source; a tokenizer has a handful at most

    @classmethod
    def load(cls, name_or_path: str) -> "PromptEncoder":
        """The tokenizer of a local directory or a hub name; ValueError where there is none."""
        try:
            return cls(_auto_tokenizer().from_pretrained(name_or_path))
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"no tokenizer can be loaded from {name_or_path!r}: {reason}") from error

    def encode(self, request: ChatRequest | CompletionRequest) -> tuple[tuple[int, ...], ...]:
        """One token sequence for each prompt of the request; `n` does not multiply them.

        Raises InvalidRequest for what template or tokenizer refuse, UnsupportedContent for parts that are not text.
        """
        return tuple(tuple(prompt.token_ids) for prompt in self.prompts(request))

    def prompts(self, request: ChatRequest | CompletionRequest) -> tuple[PromptTokens, ...]:
        """As `encode`."""
        if isinstance(request, ChatRequest):
            special = boolean(request.fields, "add_special_tokens")
            return (self._tokenize(self.render(request), special),)
        special = boolean(request.fields, "add_special_tokens", True)
        return tuple(
            self._tokenize(prompt, special) if isinstance(prompt, str) else PromptTokens(array("I", prompt))
            for prompt in request.prompts
        )

    def begin(self, chat: Chat) -> Encoding:
        """Of a chat. Both this and the rest raise as `encode` does."""
        known = chat.known.transcript if chat.known else None
        if not isinstance(known, PrintedChat) or known.encoder is not self._chats:
            chat, known = chat.whole(), None
        return Encoding(chat.new_bytes, partial(self._finish, chat, known))

    def _finish(self, chat: Chat, known: PrintedChat | None) -> tuple[PromptTokens, PrintedChat | None]:
        try:
            printed = self._continued(chat, known) if known else None
            printed = printed or self._begun(chat.whole().request)
        except Exception:  # a template's own, or an error in a message: the plain path will say it as it should be said
            printed = None
        return (printed.prompt if printed else self.prompts(chat.whole().request)[0]), printed

    def _continued(self, chat: Chat, known: PrintedChat) -> PrintedChat | None:
        messages = chat.request.messages
        if _has_developer(messages) and not known.printer.template.knows_developer:
            return None
        return self._chats.continued(known, chat.known_messages, messages)

    def _begun(self, request: ChatRequest) -> PrintedChat | None:
        """None for what only the plain path can encode."""
        fields = request.fields
        if any(fields.get(name) is not None for name in _ONLY_PLAIN):
            return None
        tools = tool_definitions(fields.get("tools"))
        template = self._template(tools)
        if template.by_message is None or (_has_developer(request.messages) and not template.knows_developer):
            return None  # such messages change others
        arguments = {**self._special_tokens, "documents": None, "tools": tools, **_template_arguments(request)}
        del arguments["continue_final_message"]  # what it asks for, transformers does with the text
        return self._chats.begun(Printer(template, arguments), request.messages)

    def render(self, request: ChatRequest) -> str:
        """The text that the chat template makes of the messages."""
        if request.fields.get("chat_template") is not None:
            # A template is a program: one from a client could keep this process busy for as long as it likes.
            raise InvalidRequest("'chat_template' is not accepted from requests", param="chat_template")
        tools = tool_definitions(request.fields.get("tools"))
        template = self._template(tools)
        messages = conversation(request.messages, content_as_parts=template.wants_parts)
        if not template.knows_developer:
            messages = developer_as_system(messages)
        arguments = _template_arguments(request)
        try:
            text: str = self.tokenizer.apply_chat_template(
                messages, tools=tools, chat_template=template.source, tokenize=False, **arguments
            )
        except Exception as error:  # a template is a program run on the client's data: whatever it raises
            raise InvalidRequest(f"the chat template refuses these messages: {error}", param="messages") from error
        return text

    def _tokenize(self, text: str, add_special_tokens: bool) -> PromptTokens:
        if not add_special_tokens:
            return PromptTokens(self._segments.encode(text).token_ids)
        return PromptTokens(array("I", self.tokenizer.encode(text, add_special_tokens=True, verbose=False)))

    def _template(self, tools: object) -> Template:
        try:
            source: str = self.tokenizer.get_chat_template(None, tools=tools)
        except ValueError as error:
            raise InvalidRequest(
                "this model has no chat template; use /v1/completions with a prompt", param="messages"
            ) from error
        if source not in self._templates:
            self._templates[source] = Template.examined(source)
        return self._templates[source]


def _has_developer(messages: Sequence[Mapping[str, Any]]) -> bool:
    return any(message["role"] == "developer" for message in messages)


def _auto_tokenizer() -> Any:
    """transformers' AutoTokenizer, imported when first needed.

    transformers imports all of torch wherever it is installed, which takes 2 to 3 s and 200 MB, though tokenizers have
    no use for it. So it finds none here, unless one of the two is loaded already: transformers looks once, and then
    believes what it saw. Whoever wants its models too imports them before.
    """
    modules = cast(dict[str, object], sys.modules)
    hidden = modules.keys().isdisjoint(("torch", "transformers"))
    if hidden:
        modules["torch"] = None  # `import torch` raises ModuleNotFoundError
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would say that it found no torch
    try:
        from transformers import AutoTokenizer
    finally:
        if hidden:
            del modules["torch"]
    return AutoTokenizer


def _template_arguments(request: ChatRequest) -> dict[str, Any]:
    given = request.fields.get("chat_template_kwargs")
    if given is not None and not isinstance(given, dict):
        raise wrong_value("chat_template_kwargs", "an object", given)
    reserved = _NOT_FOR_TEMPLATES & (given or {}).keys()
    if reserved:
        raise InvalidRequest(
            f"'chat_template_kwargs' may not set {', '.join(sorted(reserved))}", param="chat_template_kwargs"
        )
    arguments = dict(given or {})
    arguments["add_generation_prompt"] = boolean(request.fields, "add_generation_prompt", True)
    arguments["continue_final_message"] = boolean(request.fields, "continue_final_message")
    for name in ("documents", "reasoning_effort"):
        if request.fields.get(name) is not None:
            arguments[name] = request.fields[name]
    if "reasoning_effort" in arguments:
        arguments.setdefault("enable_thinking", arguments["reasoning_effort"] != "none")
    return arguments
