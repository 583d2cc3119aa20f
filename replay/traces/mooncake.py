"""Mooncake's JSON lines, and what others have added to them.

Mooncake (FAST'25): `timestamp` (ms), `input_length`, `output_length`, `hash_ids` of 512 tokens. vLLM's `timed_trace`
reads the same. aiperf: instead of `input_length` also `text_input`, `messages` with `tools`, or a whole request body as
`payload`; `session_id` and `delay` (ms) for closed-loop turns. Dynamo's replay: aliases, and `output_token_ids`. Our
own writer: `block_size`, where a hash is of another number of tokens.
"""

from collections.abc import Iterator

from replay.traces.fields import Fields
from replay.traces.row import Format, Row
from replay.traces.source import Value
from replay.traces.trace import Chat, Prompt

PROMPTS = ("input_length", "input_tokens", "text_input", "messages", "payload")
ANSWER_LIMITS = ("max_completion_tokens", "max_tokens")


def _rows(values: Iterator[Value]) -> Iterator[Row]:
    return (_row(Fields.of(value)) for value in values)


def _row(fields: Fields) -> Row:
    given = [name for name in PROMPTS if name in fields]
    if len(given) != 1:
        raise fields.wrong(given[1] if given else PROMPTS[0], f"exactly one of {', '.join(PROMPTS)}")
    [prompt] = given
    measured = prompt in ("input_length", "input_tokens")
    return Row(
        fields.place,
        input_tokens=fields.count(prompt, least=1) if measured else None,
        output_tokens=_output_tokens(fields),
        hashes=fields.hashes("hash_ids") if measured and "hash_ids" in fields else None,
        block_tokens=fields.count("block_size", least=1) if "block_size" in fields else None,
        prompt=None if measured else _prompt(fields, prompt),
        arrival_s=_seconds(fields, fields.either("timestamp", "created_time")),
        delay_s=_seconds(fields, fields.either("delay", "delay_ms")),
        session=fields.key("session_id"),
    )


def _prompt(fields: Fields, name: str) -> Prompt:
    if name == "text_input":
        return fields.text(name)
    if name == "messages":
        return Chat(fields.mappings(name), fields.mappings("tools") if "tools" in fields else ())
    body = fields.inner("payload")
    return _prompt(body, "messages") if "messages" in body else body.text("prompt")


def _output_tokens(fields: Fields) -> int | None:
    length = fields.optional_count(fields.either("output_length", "output_tokens"))
    if length is None and "output_token_ids" in fields:
        return len(fields.hashes("output_token_ids"))
    if length is None and "payload" in fields:
        body = fields.inner("payload")
        return body.optional_count(body.either(*ANSWER_LIMITS))
    return length


def _seconds(fields: Fields, name: str) -> float | None:
    milliseconds = fields.optional_number(name)
    return None if milliseconds is None else milliseconds / 1e3


MOONCAKE = Format("mooncake", tuple(frozenset({name}) for name in PROMPTS), _rows)
