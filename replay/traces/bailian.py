"""Alibaba's Bailian usage traces: JSON lines with `chat_id`, `parent_chat_id` (-1 at the root), `timestamp` (s).

Their hashes, of 16 tokens, say only what is in a block, not what came before it.
"""

from collections.abc import Iterator

from replay.traces.fields import Fields
from replay.traces.row import Format, Row
from replay.traces.source import Value

NO_PARENT = (None, "-1")


def _rows(values: Iterator[Value]) -> Iterator[Row]:
    roots: dict[str | None, str | None] = {}  # of every chat so far
    for value in values:
        fields = Fields.of(value)
        chat, parent = fields.key("chat_id"), fields.key("parent_chat_id")
        roots[chat] = chat if parent in NO_PARENT else roots.get(parent, parent)
        yield Row(
            fields.place,
            input_tokens=fields.count("input_length", least=1),
            output_tokens=fields.count("output_length"),
            hashes=fields.hashes("hash_ids") if "hash_ids" in fields else None,
            arrival_s=fields.number("timestamp"),
            session=roots[chat],
        )


BAILIAN = Format("bailian", (frozenset({"chat_id", "input_length"}),), _rows, block_tokens=16)
