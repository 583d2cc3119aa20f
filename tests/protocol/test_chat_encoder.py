"""What is continued from the cache must be, token for token, what the plain path makes of the whole conversation."""

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, TypeAlias

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from kv_events.hashing import block_hashes
from protocol.chat_reader import ChatReader
from protocol.errors import InvalidRequest
from protocol.message_template import MessageTemplate, NotByMessage
from protocol.prompt_tokens import PromptTokens
from protocol.prompts import PromptEncoder
from protocol.requests import chat_request
from tests.protocol.tokenizers import KINDS, TEXTS

Turns: TypeAlias = list[tuple[int, list[dict[str, Any]], dict[str, Any]]]

PLAIN = "{% for m in messages %}<a>{{ m.role }}\n{{ m.content }}<b>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<a>assistant\n{% endif %}"
BY_MESSAGE = {
    "one by one": PLAIN + PROMPT,
    "default system message": "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}<a>"
    "system\nBe good.<b>\n{% endif %}<a>{{ m['role'] + '\n' + m['content'] }}<b>\n{% endfor %}" + PROMPT,
    "the system message first, the first user message with the tools": "{%- if messages[0].role == 'system' %}"
    "{%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}{%- else %}"
    "{%- set system = '' %}{%- endif %}{{ '<a>system' }}{% if date is defined %}{{ date }}{% endif %}{{ system }}<b>"
    "{%- if tools %}{%- if messages | length != 0 %}{%- set first = messages[0].content | trim %}"
    "{%- set messages = messages[1:] %}{{ '<a>user ' + tools | tojson + first + '<b>' }}"
    "{%- else %}{{ raise_exception('no message for the tools') }}{% endif %}{% endif %}"
    "{%- for message in messages %}{% if message.tool_calls %}{% for call in message.tool_calls %}"
    "{{ call.function.name }}{{ call.function.arguments | tojson }}{{ '' if loop.last else ',' }}{% endfor %}"
    "{% endif %}<a>{{ message.role }} {{ message.content | trim }}<b>{% endfor %}" + PROMPT,
    "alternating roles": "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% else %}"
    "{% set rest = messages %}{% endif %}{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "({{ m.role }}){% endif %}{% if loop.index0 == 0 %}<a>{% endif %}"
    "{{ 'model' if m.role == 'assistant' else m.role }}{{ m.content | trim }}<b>{% endfor %}" + PROMPT,
    "the last one differs": "{% for m in messages %}<a>{{ m.role }}{{ m.content }}{% if not loop.last %}<b>{% endif %}"
    "{% if loop.last and add_generation_prompt %}<a>{% endif %}{% endfor %}",
    "a macro, a namespace, reasoning": "{% macro show(m) %}<a>{{ m.role }}{% if m.thinking %}({{ m.thinking }}"
    "{{ m.reasoning }}){% endif %}{{ m | tojson }}<b>{% endmacro %}{% set ns = namespace(name='x') %}"
    "{% set ns.name = messages[0].role %}{% for m in messages %}{{ show(m) }}{{ ns.name }}{% endfor %}" + PROMPT,
    "parts": "{% for m in messages %}<a>{{ m.role }}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}<b>{% endfor %}" + PROMPT,
    "nothing between": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "generation blocks and the time at the top": "{{ strftime_now('%Y') }}{% for m in messages %}<a>{% generation %}"
    "{{ m.content }}{% endgeneration %}<b>{% endfor %}" + PROMPT,
}
WHOLE = {
    "reasoning stripped from earlier turns": "{% set ns = namespace(last=0) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<a>{{ m.role }}{% if loop.index0 > ns.last and m.reasoning %}({{ m.reasoning }})"
    "{% endif %}{{ m.content }}<b>{% endfor %}" + PROMPT,
    "backwards": "{% for m in messages[::-1] %}{{ m.content }}{% endfor %}",
    "how many": "{% for m in messages %}<a>{{ m.content }}<b>{{ messages | length }}{% endfor %}",
    "the last one looked at": "{% for m in messages %}<a>{{ m.content }}{{ messages[-1].role }}<b>{% endfor %}",
    "numbered": "{% for m in messages %}<a>{{ loop.index }}{{ m.content }}<b>{% endfor %}",
    "length of the loop": "{% for m in messages %}<a>{{ loop.length }}{{ m.content }}<b>{% endfor %}",
    "the next one": "{% for m in messages %}<a>{{ m.content }}{{ loop.nextitem.role }}<b>{% endfor %}",
    "counted": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ m.content }}"
    "{% endfor %}",
    "counted by a macro": "{% set ns = namespace(n=0) %}{% macro more() %}{% set ns.n = ns.n + 1 %}{{ ns.n }}"
    "{% endmacro %}{% for m in messages %}{{ more() }}{{ m.content }}{% endfor %}",
    "cycled": "{% set c = cycler('x', 'y', 'z') %}{% for m in messages %}{{ c.next() }}{{ m.content }}{% endfor %}",
    "used up": "{% set it = 'abc' | map('upper') %}{% for m in messages %}{{ it | first }}{{ m.content }}{% endfor %}",
    "stops": "{% for m in messages %}{% if m.role == 'tool' %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "some of them": "{% for m in messages if m.role != 'system' %}{{ loop.first }}{{ m.content }}{% endfor %}",
    "another list": "{% set messages = messages[0].content %}{% for m in messages %}{{ m }}{% endfor %}",
    "captured": "{% set text %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}{{ text | length }}"
    "{{ text }}",
    "the time in each": "{% for m in messages %}{{ strftime_now('%Y') }}{{ m.content }}{% endfor %}",
    "in an alias": "{% set x = [messages] %}{% for m in messages %}{{ x[0] | length }}{{ m.content }}{% endfor %}",
    "the time in each, by another name": "{% if strftime_now is defined %}{% set date = 'x' %}{% endif %}"
    "{% set today = date %}{% for m in messages %}{{ today }}{{ m.content }}{% endfor %}",
    "the time kept": "{% set ns = namespace(t=0) %}{% set ns.t = strftime_now('%Y') %}{% for m in messages %}{{ ns.t }}"
    "{{ m.content }}{% endfor %}",
    "taken apart": "{% for role, content in messages %}{{ role }}{% endfor %}",
    "in a macro": "{% macro n() %}{{ messages | length }}{% endmacro %}{% for m in messages %}{{ n() }}{% endfor %}",
}

CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1, "b": true}'}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CONTENTS = TEXTS | st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXTS), max_size=2)
EXTRAS = st.sampled_from([{}, {}, {}, {"reasoning": "hm"}, {"tool_calls": [CALL]}, {"name": "n"}, {"content": None}])
MESSAGES = st.builds(
    lambda role, content, extra: {"role": role, "content": content, **extra},
    st.sampled_from(["user", "assistant"] * 6 + ["system", "tool", "developer"]),
    CONTENTS,
    EXTRAS,
)
OPTIONS = st.sampled_from(
    [{}] * 8  # a conversation goes on with those it began with
    + [
        {"tools": TOOLS},
        {"add_generation_prompt": False},
        {"chat_template_kwargs": {"date": "1 May"}},
        {"cache_salt": "s"},
        {"add_special_tokens": True},
    ]
)
TURNS = st.lists(
    st.tuples(st.sampled_from([12, 12, 12, *range(12)]), st.lists(MESSAGES, max_size=3), OPTIONS),
    min_size=2,
    max_size=7,
)
"""Each keeps some messages of the conversation, mostly all, and appends others: growth, forks, edits, repetitions."""


class Reader:
    """Chats read one after the other, as a router does it, of one tokenizer and template."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, template: str, **options: int) -> None:
        self.encoder = encoder_for(tokenizer, template)
        self.chats = ChatReader(**options)

    def read(self, body: bytes) -> tuple[PromptTokens, int]:
        """With the bytes that had to be tokenized."""
        chat = self.chats.read(body)
        encoding = self.encoder.begin(chat)
        prompt, printed = encoding.finish()
        if printed is not None:
            self.chats.keep(chat, printed)
        return prompt, encoding.new_bytes


def encoder_for(tokenizer: PreTrainedTokenizerFast, template: str) -> PromptEncoder:
    tokenizer = deepcopy(tokenizer)
    tokenizer.chat_template = template
    return PromptEncoder(tokenizer)


def plainly(encoder: PromptEncoder, fields: dict[str, Any]) -> list[int] | str:
    """Token ids, or what is wrong with the request."""
    try:
        text = encoder.render(chat_request(fields))
    except InvalidRequest as error:
        return error.message
    ids: list[int] = encoder.tokenizer.encode(text, add_special_tokens=fields.get("add_special_tokens", False))
    return ids


def with_cache(reader: Reader, body: bytes) -> PromptTokens | str:
    try:
        return reader.read(body)[0]
    except InvalidRequest as error:
        return error.message


def check(reader: Reader, turns: Turns) -> None:
    messages: list[dict[str, Any]] = []
    for kept, more, options in turns:
        messages = [*messages[:kept], *more] or [{"role": "user", "content": "hi"}]
        fields = {**options, "messages": messages}
        prompt = with_cache(reader, json.dumps(fields).encode() if "tools" in options else orjson.dumps(fields))
        assert (prompt if isinstance(prompt, str) else list(prompt)) == plainly(reader.encoder, fields)
        if isinstance(prompt, PromptTokens):
            for size in (1, 4):
                assert prompt.block_hashes(size, 7, block_hashes) == block_hashes(prompt.token_ids, size, 7)


@pytest.mark.parametrize("template", BY_MESSAGE.values(), ids=BY_MESSAGE)
def test_templates_that_print_messages_one_by_one(template: str) -> None:
    MessageTemplate(template)
    reader = Reader(KINDS["byte level"], template)

    @settings(max_examples=30, deadline=None)
    @given(turns=TURNS)
    def same(turns: Turns) -> None:
        check(reader, turns)

    same()


@pytest.mark.parametrize("template", WHOLE.values(), ids=WHOLE)
def test_templates_in_which_messages_depend_on_others_are_told_apart(template: str) -> None:
    with pytest.raises(NotByMessage):
        MessageTemplate(template)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", [*list(BY_MESSAGE.values())[1:3], *list(WHOLE.values())[:1]])
def test_tokenizers_of_every_kind(kind: str, template: str) -> None:
    reader = Reader(KINDS[kind], template)

    @settings(max_examples=10, deadline=None)
    @given(turns=TURNS)
    def same(turns: Turns) -> None:
        check(reader, turns)

    same()


def test_a_cache_too_small_for_all() -> None:
    reader = Reader(KINDS["byte level"], BY_MESSAGE["one by one"], max_cached_bytes=6000)

    @settings(max_examples=20, deadline=None)
    @given(turns=TURNS)
    def same(turns: Turns) -> None:
        check(reader, turns)

    same()


def test_a_next_turn_has_nothing_to_do_but_its_own_messages() -> None:
    reader = Reader(KINDS["byte level"], BY_MESSAGE["default system message"])
    messages = [{"role": ("user", "assistant")[i % 2], "content": "long " * 50} for i in range(9)]
    _, whole_bytes = reader.read(orjson.dumps({"messages": messages}))
    more = [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "no"}]
    prompt, new_bytes = reader.read(orjson.dumps({"messages": messages + more}))
    assert whole_bytes > 9 * 250
    assert new_bytes < 2 * 250 + 100  # places are odd and even: one message more than the new ones
    hashed: list[int] = []

    def counting(tokens: Sequence[int], block_size: int, parent: int) -> list[int]:
        hashed.append(len(tokens))
        return block_hashes(tokens, block_size, parent)

    prompt.block_hashes(4, 1, counting)
    same, _ = reader.read(orjson.dumps({"messages": messages + more}))
    same.block_hashes(4, 1, counting)
    assert hashed[0] == len(prompt)  # nobody had asked for hashes before
    assert hashed[1] < 60


@pytest.mark.parametrize(
    "option", [{"cache_salt": "s"}, {"model": "other"}, {"tools": TOOLS}, {"add_special_tokens": True}]
)
@pytest.mark.parametrize("first", [True, False])
def test_another_salt_and_whatever_else_matters_finds_nothing(option: dict[str, Any], first: bool) -> None:
    reader = Reader(KINDS["byte level"], BY_MESSAGE["one by one"])
    chat = {"messages": [{"role": "user", "content": "hello"}] * 4}
    reader.read(orjson.dumps(chat))
    assert reader.read(orjson.dumps(chat))[1] < 10
    assert reader.read(orjson.dumps({**option, **chat} if first else {**chat, **option}))[1] > 4 * 30
