"""OpenAI chat messages as chat templates want them, step for step what vLLM does (vllm/renderers/chat_utils.py, hf.py).

A router that predicts an engine's tokens has to agree with it to the character, so each rule here is one of vLLM's.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import orjson

from protocol.errors import InvalidRequest
from protocol.fields import shown, wrong_value

Message: TypeAlias = dict[str, Any]

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""The content parts that are text, and the key that holds it."""


class UnsupportedContent(InvalidRequest):
    """A content part that is not text (an image, audio, ...): its tokens cannot be known here."""


def conversation(messages: Iterable[Mapping[str, Any]], *, content_as_parts: bool) -> list[Message]:
    """The messages for a template that iterates over content (`content_as_parts`) or one that wants a string.

    Raises InvalidRequest where a part or a tool call is malformed, UnsupportedContent for parts that are not text.
    """
    return [_message(each, content_as_parts, f"messages[{place}]") for place, each in enumerate(messages)]


def developer_as_system(messages: Sequence[Message]) -> list[Message]:
    """For templates without the role `developer`: where it occurs, one system message of all that belongs there."""
    if all(each["role"] != "developer" for each in messages):
        return list(messages)
    renamed = [_system(each) if each["role"] == "developer" else each for each in messages]
    if all(each["role"] != "system" for each in renamed[1:]):
        return renamed
    texts = [_joined(each["content"]) for each in renamed if each["role"] == "system"]
    others = [each for each in renamed if each["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(filter(None, texts))}, *others]


def tool_definitions(tools: object) -> list[dict[str, Any]] | None:
    """`tools` in the one key order that vLLM gives to templates, which print them as JSON; None when there are none."""
    if tools is None:
        return None
    if not isinstance(tools, list) or not tools:
        raise wrong_value("tools", "a non-empty list", tools)
    return [_tool_definition(tool, f"tools[{place}]") for place, tool in enumerate(tools)]


def _message(message: Mapping[str, Any], content_as_parts: bool, param: str) -> Message:
    role, content = message["role"], message.get("content")
    as_string = not content_as_parts or role == "tool"  # tools' results are text for every template
    if not as_string or not isinstance(content, str):
        parts = _parts(content, f"{param}.content")
        content = _joined(parts) if as_string else parts
    result: Message = {"role": role, "content": content}
    if role == "assistant":
        result |= _assistant_fields(message, param)
    if role == "tool" and "tool_call_id" in message:
        result["tool_call_id"] = message["tool_call_id"]
    if role == "developer":
        result["tools"] = message.get("tools")
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            result[key] = message[key]
    return result


def _parts(content: str | list[Any] | None, param: str) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts = (_part(part, f"{param}[{place}]") for place, part in enumerate(content))
    return [part for part in parts if part is not None]


def _part(part: object, param: str) -> dict[str, Any] | None:
    """A text part; None for one without any text."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise wrong_value(param, "an object or a string", part)
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise UnsupportedContent(
            f"'{param}.type' is {shown(kind)}; supported are {', '.join(_TEXT_PARTS)}", param=f"{param}.type"
        )
    text = part.get(_TEXT_PARTS[kind])
    if text is not None and not isinstance(text, str):
        raise wrong_value(f"{param}.{_TEXT_PARTS[kind]}", "a string", text)
    return None if text is None else {"type": "text", "text": text}


def _joined(content: str | Sequence[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _system(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}


def _assistant_fields(message: Mapping[str, Any], param: str) -> Message:
    fields: Message = {}
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise wrong_value(f"{param}.tool_calls", "a list", calls)
    if calls:
        fields["tool_calls"] = [_tool_call(call, f"{param}.tool_calls[{place}]") for place, call in enumerate(calls)]
    reasoning = message.get("reasoning")
    reasoning = message.get("reasoning_content") if reasoning is None else reasoning
    if reasoning is not None:
        fields |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return fields


def _tool_call(call: object, param: str) -> dict[str, Any]:
    """Templates want the arguments as an object, OpenAI's history has them as JSON text."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or call.get("type", "function") != "function":
        raise wrong_value(param, "an object of type 'function' with a 'function'", call)
    return call | {"function": function | {"arguments": _arguments(function.get("arguments"))}}


def _arguments(arguments: object) -> dict[str, Any]:
    """A malformed text stands in the history for good: failing on it would make the conversation unrecoverable."""
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            return {}
    return arguments if isinstance(arguments, dict) else {}


def _tool_definition(tool: object, param: str) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise wrong_value(param, "an object whose 'function' has a 'name'", tool)
    definition = {key: function.get(key) for key in ("name", "description", "parameters")}
    if function.get("strict") is not None:
        definition["strict"] = function["strict"]
    return {"type": "function", "function": definition}
