"""TraceLab's coding sessions: JSON lines, one for each round of an agent, without hashes.

What a round shares is rebuilt from `prefix_tokens`, the part of its prompt that the provider's cache had: it is taken
to be the beginning of the session's previous prompt. That is too little after a pause that emptied the cache, and
nothing is shared between sessions.
"""

from collections.abc import Iterator

from replay.traces.fields import Fields
from replay.traces.row import Format, Row
from replay.traces.source import Value


def _rows(values: Iterator[Value]) -> Iterator[Row]:
    for value in values:
        fields = Fields.of(value)
        times_s = [event.time_s("timestamp") for event in fields.objects("timing_events") if "timestamp" in event]
        if not times_s:
            raise fields.wrong("timing_events", "at least one event with a timestamp")
        yield Row(
            fields.place,
            input_tokens=fields.count("input_tokens_total", least=1),
            output_tokens=fields.optional_count("output_tokens"),
            shared_tokens=fields.count("prefix_tokens"),
            arrival_s=min(times_s),
            duration_s=max(times_s) - min(times_s),
            session=fields.key("session_id"),
        )


TRACELAB = Format("tracelab", (frozenset({"round_index", "input_tokens_total"}),), _rows)
