import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidRequest
from protocol.requests import MAX_CACHE_SALT_CHARS, MAX_PROMPTS, parse_chat, parse_completion

HELLO = [{"role": "user", "content": "hello"}]
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab\u00e9", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def chat_error(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(body(**({"messages": HELLO} | fields)))
    return caught.value


def prompt_error(prompt: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_completion(body(prompt=prompt))
    return caught.value


def test_chat() -> None:
    raw = body(
        model="m", messages=HELLO, stream=True, stream_options={"include_usage": True}, cache_salt="s", own_field=[1]
    )
    request = parse_chat(raw)
    assert (request.model, request.messages, request.stream, request.include_usage, request.cache_salt) == (
        "m",
        tuple(HELLO),
        True,
        True,
        "s",
    )
    assert request.fields == json.loads(raw)  # unknown keys included


@pytest.mark.parametrize("absent", [{}, {"model": None, "stream": None, "stream_options": None, "cache_salt": None}])
def test_what_is_absent_or_null_has_defaults(absent: dict[str, None]) -> None:
    request = parse_chat(body(messages=HELLO, **absent))
    assert (request.model, request.stream, request.include_usage, request.cache_salt) == (None, False, False, None)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("one", ("one",)),
        (["one", "two"], ("one", "two")),
        ([1, 2, 0], ((1, 2, 0),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["text", [7]], ("text", (7,))),
    ],
)
def test_every_form_of_prompt(prompt: object, prompts: tuple[object, ...]) -> None:
    assert parse_completion(body(prompt=prompt)).prompts == prompts


@pytest.mark.parametrize(
    "prompt", [None, "", [], 5, {}, [[]], ["a", ""], [1, "a"], [[1], [2.5]], [True], [-1], [2**32], ["a", [1, None]]]
)
def test_bad_prompts_say_what_is_allowed(prompt: object) -> None:
    error = prompt_error(prompt)
    assert error.param is not None
    assert error.param.startswith("prompt")
    assert "text" in error.message
    assert "token ids" in error.message


def test_prompt_error_says_which_prompt() -> None:
    assert prompt_error(["a", "b", 7]).param == "prompt[2]"


def test_number_of_prompts_is_bounded() -> None:
    assert str(MAX_PROMPTS) in prompt_error(["a"] * (MAX_PROMPTS + 1)).message


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"model": 5}, "model", "string, not 5"),
        ({"messages": None}, "messages", "non-empty list, not null"),
        ({"messages": []}, "messages", "non-empty list, not []"),
        ({"messages": "hi"}, "messages", 'non-empty list, not "hi"'),
        ({"messages": [*HELLO, "hi"]}, "messages[1]", 'object, not "hi"'),
        ({"messages": [{"content": "hi"}]}, "messages[0].role", "non-empty string, not null"),
        ({"messages": [{"role": ""}]}, "messages[0].role", 'non-empty string, not ""'),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "string, a list of parts or null"),
        ({"stream": "yes"}, "stream", 'true or false, not "yes"'),
        ({"stream": 1}, "stream", "true or false, not 1"),
        ({"stream": True, "stream_options": [1]}, "stream_options", "object, not a list"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "only when 'stream' is true"),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
            "true or false, not 1",
        ),
        ({"cache_salt": ""}, "cache_salt", '1 to 1024 characters, not ""'),
        ({"cache_salt": 5}, "cache_salt", "string"),
        ({"cache_salt": "x" * (MAX_CACHE_SALT_CHARS + 1)}, "cache_salt", "1 to 1024 characters"),
    ],
)
def test_errors_name_the_parameter_the_value_and_what_is_allowed(
    fields: dict[str, object], param: str, says: str
) -> None:
    error = chat_error(**fields)
    assert error.param == param
    assert f"'{param}'" in error.message
    assert says in error.message
    assert len(error.message) < 200


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object, not []"),
        (b'"text"', "must be a JSON object"),
        (b'{"messages": NaN}', "not valid JSON"),
        (b'{"model": "\xff"}', "not valid UTF-8: invalid start byte at byte 11"),
        (b'{"model": "\\ud800"}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_bodies_that_are_no_json_object(raw: bytes, says: str) -> None:
    with pytest.raises(InvalidRequest, match="the request body") as caught:
        parse_chat(raw)
    assert says in caught.value.message


@given(st.binary(max_size=200))
def test_random_bytes_never_crash(raw: bytes) -> None:
    for parse in (parse_chat, parse_completion):
        with pytest.raises(InvalidRequest):
            parse(raw)


@given(
    st.dictionaries(
        st.sampled_from(["model", "messages", "prompt", "stream", "stream_options", "cache_salt"]), JSON_VALUES
    )
)
def test_random_fields_are_taken_or_refused_by_name(fields: dict[str, Any]) -> None:
    for parse in (parse_chat, parse_completion):
        try:
            outcome: Any = parse(json.dumps(fields).encode())
        except InvalidRequest as error:
            outcome = error
        assert outcome.param if isinstance(outcome, InvalidRequest) else outcome.fields.keys() == fields.keys()


def test_deep_nesting_in_a_wrong_place_still_gives_an_error() -> None:
    raw = b'{"messages": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}"
    with pytest.raises(InvalidRequest, match="non-empty list, not an object"):
        parse_chat(raw)
