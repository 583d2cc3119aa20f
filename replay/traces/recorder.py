"""Dynamo's request recorder, schema `dynamo.request.trace.v1`: JSON lines of events, in the order of their end.

Of them a request's end is read; tool calls show only in the times between a session's requests. Hashes are there if
the recorder was told to write what a replay needs.
"""

from collections.abc import Iterator

from replay.traces.fields import Fields
from replay.traces.row import Format, Row
from replay.traces.source import Value

SCHEMA = "dynamo.request.trace.v1"


def _rows(values: Iterator[Value]) -> Iterator[Row]:
    for value in values:
        event = Fields.of(value).inner("event")
        if event.text("schema") != SCHEMA:
            raise event.wrong("schema", repr(SCHEMA))
        if "request" in event:
            yield _row(event, event.inner("request"))


def _row(event: Fields, request: Fields) -> Row:
    replay = request.inner("replay") if "replay" in request else None
    return Row(
        event.place,
        input_tokens=request.count("input_tokens", least=1),
        output_tokens=request.optional_count("output_tokens"),
        hashes=replay.hashes("input_sequence_hashes") if replay else None,
        block_tokens=replay.count("trace_block_size", least=1) if replay else None,
        arrival_s=request.number("request_received_ms") / 1e3,
        duration_s=request.number("total_time_ms") / 1e3 if "total_time_ms" in request else None,
        session=event.inner("agent_context").key("session_id") if "agent_context" in event else None,
    )


RECORDER = Format("dynamo-recorder", (frozenset({"event"}),), _rows)
