"""Baseten's completion traces: Parquet, with the prompt's text, and often hashes of its blocks beside it."""

from collections.abc import Iterator

from replay.traces.fields import Fields
from replay.traces.row import Format, Row
from replay.traces.source import Value


def _rows(values: Iterator[Value]) -> Iterator[Row]:
    """`timestamp_start_unix_ms`, `prompt`, `input_tokens`, `output_tokens`; and where it is exported `total_hashes` of
    `block_size` tokens, `provided_session_id`, `poor_man_session_id` (a guess), `duration_e2e_ms`.

    Hashes beat the text, for they are of the tokens that the engine saw.
    """
    for value in values:
        fields = Fields.of(value)
        hashed = bool("total_hashes" in fields and fields.hashes("total_hashes"))
        duration_ms = fields.optional_number("duration_e2e_ms")
        yield Row(
            fields.place,
            input_tokens=fields.count("input_tokens", least=1) if hashed else None,
            output_tokens=fields.count("output_tokens"),
            hashes=fields.hashes("total_hashes") if hashed else None,
            block_tokens=fields.count("block_size", least=1) if hashed else None,
            prompt=None if hashed else fields.text("prompt"),
            arrival_s=fields.number("timestamp_start_unix_ms") / 1e3,
            duration_s=None if duration_ms is None else duration_ms / 1e3,
            session=fields.key(fields.either("provided_session_id", "poor_man_session_id")),
        )


BASETEN = Format("baseten", (frozenset({"timestamp_start_unix_ms", "prompt"}),), _rows)
