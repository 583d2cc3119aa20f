"""What is read of a body that goes on from an earlier one must be what would be read of it alone."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.chat_reader import Chat, ChatReader
from protocol.errors import InvalidRequest
from protocol.requests import ChatRequest, parse_chat

Messages: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True)
class Kept:
    """A conversation's messages, all of which may be taken over."""

    messages: tuple[Any, ...]
    size_bytes: int = 0

    def continuable(self, messages: int) -> int:
        return messages


def read(reader: ChatReader, body: bytes) -> Chat:
    chat = reader.read(body)
    reader.keep(chat, Kept(all_messages(chat)))
    return chat


def all_messages(chat: Chat) -> tuple[Any, ...]:
    known = chat.known.transcript.messages[: chat.known_messages] if chat.known else ()  # type: ignore[attr-defined]
    return (*known, *chat.request.messages)


def outcome(parse: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return parse(body)
    except InvalidRequest as error:
        return error.message


def as_read(reader: ChatReader, body: bytes) -> Any:
    chat = read(reader, body)
    return all_messages(chat), *others(chat.request), chat.first_answer


def as_parsed(body: bytes) -> Any:
    request = parse_chat(body)
    roles = [message["role"] for message in request.messages]
    return request.messages, *others(request), roles.index("assistant") if "assistant" in roles else None


def others(request: ChatRequest) -> tuple[Any, ...]:
    fields = {name: value for name, value in request.fields.items() if name != "messages"}
    return request.model, request.stream, request.include_usage, request.cache_salt, fields


TEXTS = st.text() | st.sampled_from(['"messages":[{', '\\"]}', "é世🌍", "\\", '"', "]}", "\u2028"])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "x"]), "content": TEXTS},
        optional={
            "messages": st.just([{"role": "user"}]),
            "n": st.sampled_from([1.5, 10**30, [[{}]], {"a": {"b": "}"}}]),
        },
    ),
    min_size=1,
    max_size=3,
)
FORMS: list[Callable[[Any], bytes]] = [
    lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(),
    lambda value: json.dumps(value).encode(),
    lambda value: json.dumps(value, ensure_ascii=False, indent=1).encode(),
]
OTHERS = st.sampled_from(
    [
        *({}, {}, {}, {"model": "m"}, {"model": 1}, {"cache_salt": "s"}, {"user": '"messages": [{'}),
        {"stream": True, "stream_options": {"include_usage": True}},
        {"metadata": {"messages": [{"role": "user", "content": "a"}]}},
    ]
)
TURNS = st.lists(st.tuples(st.integers(0, 9), MESSAGES, OTHERS, st.booleans(), st.sampled_from(FORMS)), max_size=6)
"""Each keeps so many messages and appends others, with other fields behind the messages or before."""


@settings(deadline=None)
@given(turns=TURNS, damage=st.tuples(st.floats(0, 1), st.integers(0, 3), st.binary(max_size=3)))
def test_reads_what_the_body_says(turns: list[Any], damage: tuple[float, int, bytes]) -> None:
    reader, messages = ChatReader(), []  # type: Messages
    for kept, more, fields, behind, form in turns:
        messages = [*messages[:kept], *more]
        body = form({"messages": messages, **fields} if behind else {**fields, "messages": messages})
        assert outcome(lambda each: as_read(reader, each), body) == outcome(as_parsed, body)
        place, gone, new = int(damage[0] * len(body)), damage[1], damage[2]
        damaged = body[:place] + new + body[place + gone :]
        assert outcome(lambda each: as_read(reader, each), damaged) == outcome(as_parsed, damaged)


A, B = b'{"role":"user","content":"a"}', b'{"role":"assistant"}'


@pytest.mark.parametrize(
    "tail",
    [
        b",%b]}" % B,
        b" , %b ] }" % B,
        b"]}",
        b'],"messages":[%b]}' % B,
        b'],"messages":[1]}',
        b'],"messages":[]}',
        b'],"messages":null}',
        b'],"n":[[%b]]}' % B,
        b",]}",
        b",1]}",
        b',{"role":1}]}',
        b'],"model":1}',
        b"}",
        b"]",
        b"",
        b"]}]}",
        b',"x"]}',
        b',{"role":"user","content":"\xff"}]}',
    ],
)
def test_whatever_comes_behind_known_messages(tail: bytes) -> None:
    reader, body = ChatReader(), b'{"messages":[%b,%b' % (A, A)
    read(reader, body + b"]}")
    assert outcome(lambda each: as_read(reader, each), body + tail) == outcome(as_parsed, body + tail)


def test_a_next_turn_is_read_from_where_it_goes_on() -> None:
    reader = ChatReader()
    read(reader, b'{"messages": [%b, %b], "model": "m"}' % (A, B))
    chat = read(reader, b'{"temperature": 1, "model": "m", "messages": [%b, %b, %b]}' % (A, B, A))
    assert (chat.known_messages, len(chat.request.messages), chat.new_bytes) == (2, 1, len(A) + 4)
    assert chat.whole().request == parse_chat(chat.body)
    fork = read(reader, b'{"messages": [%b, %b, %b, %b], "model": "m"}' % (A, B, B, A))
    assert (fork.known_messages, fork.first_answer) == (2, 1)


@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata":{"messages":[%b]},"messages":[%b]}' % (A, A),
        b'{"messages":[{"role":"user","content":"b"}],"messages":[%b]}' % A,
        b'{"x\\"messages":[%b],"messages":[%b]}' % (A, A),
        b'{"messages":[{"role":"user","content":%b}]}' % (b"[" * 1000 + b"]" * 1000),
    ],
)
def test_a_list_that_is_found_in_the_wrong_place_or_too_deep_is_not_kept(body: bytes) -> None:
    reader = ChatReader()
    for _ in range(2):
        assert read(reader, body).known is None
