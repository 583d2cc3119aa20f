"""Formats that hold prompts as text: LMCache's agent traces, ShareGPT, AIBrix workloads, OpenTelemetry spans."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from replay.traces.fields import Fields
from replay.traces.row import Format, Row
from replay.traces.source import Value
from replay.traces.trace import Chat

ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
"""What ShareGPT's collectors call the two sides."""


def _lmcache_rows(values: Iterator[Value]) -> Iterator[Row]:
    """JSON lines; `timestamp` in microseconds since 1970."""
    for value in values:
        fields = Fields.of(value)
        yield Row(
            fields.place,
            prompt=fields.text("input"),
            answer=fields.text("output"),
            arrival_s=fields.number("timestamp") / 1e6,
            session=fields.key("session_id"),
        )


def _sharegpt_rows(values: Iterator[Value]) -> Iterator[Row]:
    """A list of conversations; a request for each answer in them, without times."""
    for value in values:
        fields = Fields.of(value)
        messages: list[dict[str, Any]] = []
        for said in fields.objects("conversations"):
            role, text = said.text("from"), said.text("value")
            message = {"role": ROLES.get(role, role), "content": text}
            if messages and message["role"] == "assistant":
                session = fields.key("id") or str(fields.place)
                yield Row(fields.place, prompt=Chat(tuple(messages)), answer=text, session=session)
            messages.append(message)


def _aibrix_rows(values: Iterator[Value]) -> Iterator[Row]:
    """JSON lines, each with the requests of one `timestamp` (ms); older files have lengths only, under other names."""
    for value in values:
        fields = Fields.of(value)
        arrival_s = fields.number("timestamp") / 1e3
        for request in fields.objects("requests"):
            has_prompt = "prompt" in request
            length = request.either("prompt_length", "Prompt Length")
            yield Row(
                fields.place,
                input_tokens=None if has_prompt else request.count(length, least=1),
                output_tokens=request.optional_count(request.either("output_length", "Output Length")),
                prompt=request.text("prompt") if has_prompt else None,
                arrival_s=arrival_s,
                session=request.key("session_id"),
            )


def _otel_rows(values: Iterator[Value]) -> Iterator[Row]:
    """inference-perf's documents: `spans` with the attributes of OpenTelemetry's GenAI conventions; others pass by."""
    for value in values:
        for span in Fields.of(value).objects("spans"):
            attributes = span.inner("attributes")
            if "gen_ai.input.messages" in attributes:
                yield _span_row(span, attributes)


def _span_row(span: Fields, attributes: Fields) -> Row:
    started_s = span.time_s("start_time")
    tokens = attributes.either("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")
    return Row(
        span.place,
        prompt=Chat(_messages(attributes)),
        output_tokens=attributes.optional_count(tokens),
        answer=attributes.text("gen_ai.output.text") if "gen_ai.output.text" in attributes else None,
        arrival_s=started_s,
        duration_s=span.time_s("end_time") - started_s,
        session=span.key("trace_id"),
    )


def _messages(attributes: Fields) -> tuple[Mapping[str, Any], ...]:
    """A list of messages, or the same as JSON in a text, which is what an attribute can hold."""
    name = "gen_ai.input.messages"
    if not attributes.is_text(name):
        return attributes.mappings(name)
    try:
        messages = orjson.loads(attributes.text(name))
    except orjson.JSONDecodeError as error:
        raise attributes.wrong(name, "a list of messages, as JSON") from error
    return Fields(attributes.place, {name: messages}).mappings(name)


LMCACHE = Format("lmcache", (frozenset({"input", "output", "timestamp"}),), _lmcache_rows)
SHAREGPT = Format("sharegpt", (frozenset({"conversations"}),), _sharegpt_rows)
AIBRIX = Format("aibrix", (frozenset({"timestamp", "requests"}),), _aibrix_rows)
OTEL = Format("otel", (frozenset({"spans"}),), _otel_rows)
