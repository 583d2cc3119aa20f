"""OpenAI requests as values: what routing and serving need is checked, every other field is kept as it came.

Sampling parameters are the engine's business and stay unchecked in `fields`; the field names and forms are those of
OpenAI's API reference and of vLLM (vllm/entrypoints/openai/{chat_completion,completion}/protocol.py).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

import orjson

from protocol.errors import InvalidRequest
from protocol.fields import boolean, shown, wrong_value

MAX_PROMPTS = 1024  # vLLM's VLLM_MAX_COMPLETION_PROMPTS
MAX_CACHE_SALT_CHARS = 1024  # vLLM's max_length of cache_salt
MAX_TOKEN_ID = 2**32 - 1

Prompt: TypeAlias = str | tuple[int, ...]


class ChatRequest(NamedTuple):
    """A body of /v1/chat/completions. `fields` is the whole of it, unknown keys included; `model` None: not given."""

    model: str | None
    messages: tuple[Mapping[str, Any], ...]
    stream: bool
    include_usage: bool
    cache_salt: str | None
    fields: Mapping[str, Any]


class CompletionRequest(NamedTuple):
    """A body of /v1/completions: one or more prompts, each a text or token ids, none of them empty."""

    model: str | None
    prompts: tuple[Prompt, ...]
    stream: bool
    include_usage: bool
    cache_salt: str | None
    fields: Mapping[str, Any]


def parse_chat(body: bytes) -> ChatRequest:
    """Raises InvalidRequest naming the parameter that is wrong."""
    return chat_request(parse_object(body))


def parse_completion(body: bytes) -> CompletionRequest:
    """Raises InvalidRequest naming the parameter that is wrong."""
    return completion_request(parse_object(body))


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; InvalidRequest for anything else."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(_why_not_json(body, error)) from error
    if not isinstance(fields, dict):
        raise InvalidRequest(f"the request body must be a JSON object, not {shown(fields)}")
    return fields


def chat_request(fields: Mapping[str, Any], continued: bool = False) -> ChatRequest:
    """`continued`: other messages come before these, so that there may be none."""
    stream, include_usage = _streaming(fields)
    return ChatRequest(
        model=_model(fields),
        messages=_messages(fields.get("messages"), 0 if continued else 1),
        stream=stream,
        include_usage=include_usage,
        cache_salt=_cache_salt(fields),
        fields=fields,
    )


def completion_request(fields: Mapping[str, Any]) -> CompletionRequest:
    stream, include_usage = _streaming(fields)
    return CompletionRequest(
        model=_model(fields),
        prompts=_prompts(fields.get("prompt")),
        stream=stream,
        include_usage=include_usage,
        cache_salt=_cache_salt(fields),
        fields=fields,
    )


def _why_not_json(body: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        body.decode()
    except UnicodeDecodeError as not_utf8:
        return f"the request body is not valid UTF-8: {not_utf8.reason} at byte {not_utf8.start}"
    return f"the request body is not valid JSON: {error}"


def _model(fields: Mapping[str, Any]) -> str | None:
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise wrong_value("model", "a string", model)
    return model


def _streaming(fields: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether to stream, and whether to end the stream with the usage."""
    stream = boolean(fields, "stream")
    options = fields.get("stream_options")
    if options is None:
        return stream, False
    if not isinstance(options, dict):
        raise wrong_value("stream_options", "an object", options)
    if not stream:
        raise InvalidRequest("'stream_options' is allowed only when 'stream' is true", param="stream_options")
    return stream, boolean(options, "include_usage", within="stream_options.")


def _cache_salt(fields: Mapping[str, Any]) -> str | None:
    salt = fields.get("cache_salt")
    if salt is None:
        return None
    if not isinstance(salt, str) or not 1 <= len(salt) <= MAX_CACHE_SALT_CHARS:
        raise wrong_value("cache_salt", f"a string of 1 to {MAX_CACHE_SALT_CHARS} characters", salt)
    return salt


def _messages(messages: object, at_least: int) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(messages, list) or len(messages) < at_least:
        raise wrong_value("messages", "a non-empty list", messages)
    for place, message in enumerate(messages):
        if not _is_message(message):
            raise _wrong_message(message, f"messages[{place}]")
    return tuple(messages)


def _is_message(message: object) -> bool:
    if not isinstance(message, dict):
        return False
    role, content = message.get("role"), message.get("content")
    return isinstance(role, str) and role != "" and (content is None or isinstance(content, (str, list)))


def _wrong_message(message: object, param: str) -> InvalidRequest:
    if not isinstance(message, dict):
        return wrong_value(param, "an object", message)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        return wrong_value(f"{param}.role", "a non-empty string", role)
    return wrong_value(f"{param}.content", "a string, a list of parts or null", message["content"])


def _prompts(prompt: object) -> tuple[Prompt, ...]:
    if isinstance(prompt, list) and prompt and not _is_token_id(prompt[0]):
        if len(prompt) > MAX_PROMPTS:
            raise InvalidRequest(f"'prompt' has {len(prompt)} prompts; at most {MAX_PROMPTS} fit", param="prompt")
        return tuple(_prompt(each, f"prompt[{place}]") for place, each in enumerate(prompt))
    return (_prompt(prompt, "prompt"),)


def _prompt(prompt: object, param: str) -> Prompt:
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(map(_is_token_id, prompt)):
        return tuple(prompt)
    raise wrong_value(param, "a non-empty text or a non-empty list of token ids (whole numbers from 0)", prompt)


def _is_token_id(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_TOKEN_ID
