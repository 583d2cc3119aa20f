import json

import pytest

from protocol.conversation import UnsupportedContent, conversation, developer_as_system, tool_definitions
from protocol.errors import InvalidRequest


def only(message: dict[str, object], content_as_parts: bool = False) -> dict[str, object]:
    (result,) = conversation([message], content_as_parts=content_as_parts)
    return result


def test_text_parts_are_joined_by_line_ends_or_kept_as_parts() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "refusal", "refusal": "c"}]}
    assert only(message)["content"] == "a\nb\nc"
    assert only(message, content_as_parts=True)["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
        {"type": "text", "text": "c"},
    ]


def test_tool_results_are_text_for_every_template() -> None:
    message = {"role": "tool", "tool_call_id": "7", "content": [{"type": "text", "text": "a"}]}
    assert only(message, content_as_parts=True) == {"role": "tool", "tool_call_id": "7", "content": "a"}


@pytest.mark.parametrize(
    ("arguments", "as_object"),
    [('{"x": 1}', {"x": 1}), ({"x": 1}, {"x": 1}), ("", {}), (None, {}), ("[1]", {}), ("{broken", {})],
)
def test_tool_calls_get_their_arguments_as_objects(arguments: object, as_object: dict[str, int]) -> None:
    call = {"id": "7", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = only({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message["tool_calls"] == [{"id": "7", "type": "function", "function": {"name": "f", "arguments": as_object}}]
    assert call["function"] == {"name": "f", "arguments": arguments}  # the request itself stays as it came


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_has_both_names(key: str) -> None:
    message = only({"role": "assistant", "content": "x", key: "because"})
    assert (message["reasoning"], message["reasoning_content"]) == ("because", "because")


def test_fields_that_vllm_does_not_pass_on_are_dropped() -> None:
    message = {"role": "user", "content": "x", "name": "me", "tool_calls": [], "cache_control": {}}
    assert only(message) == {"role": "user", "content": "x", "name": "me"}


@pytest.mark.parametrize(
    ("content", "param", "says"),
    [
        ([{"type": "image_url", "image_url": {"url": "x"}}], "messages[0].content[0].type", '"image_url"; supported'),
        ([{"type": "text", "text": "a"}, {"text": "b"}], "messages[0].content[1].type", "null; supported"),
        ([{"type": ["text"]}], "messages[0].content[0].type", "a list; supported"),
    ],
)
def test_other_content_is_refused_by_its_own_error(content: list[object], param: str, says: str) -> None:
    with pytest.raises(UnsupportedContent) as caught:
        only({"role": "user", "content": content})
    assert caught.value.param == param
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [5]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0].text"),
        ({"role": "assistant", "tool_calls": "f"}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": ["f"]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"type": "other", "function": {}}]}, "messages[0].tool_calls[0]"),
    ],
)
def test_malformed_messages_are_refused_by_name(message: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        only(message)
    assert caught.value.param == param


def test_developer_messages_join_the_system_message() -> None:
    messages = [
        {"role": "developer", "content": "first", "tools": None},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": [{"type": "text", "text": "second"}]},
        {"role": "developer", "content": ""},
    ]
    assert developer_as_system(messages) == [
        {"role": "system", "content": "first\n\nsecond"},
        {"role": "user", "content": "hi"},
    ]


def test_without_developer_messages_nothing_moves() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "system", "content": "s"}]
    assert developer_as_system(messages) == messages


def test_one_leading_system_message_stays_as_it_is() -> None:
    messages = [{"role": "system", "content": [{"type": "text", "text": "s"}]}, {"role": "user", "content": "hi"}]
    assert developer_as_system(messages) == messages


def test_tool_definitions_have_one_key_order() -> None:
    tools = [{"function": {"strict": True, "own": 1, "parameters": {}, "name": "f"}, "type": "function"}]
    function = {"name": "f", "description": None, "parameters": {}, "strict": True}
    assert json.dumps(tool_definitions(tools)) == json.dumps([{"type": "function", "function": function}])


@pytest.mark.parametrize(
    ("tools", "param"), [([], "tools"), ("f", "tools"), (["f"], "tools[0]"), ([{"function": {}}], "tools[0]")]
)
def test_malformed_tools_are_refused_by_name(tools: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tool_definitions(tools)
    assert caught.value.param == param
