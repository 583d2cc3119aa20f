"""Any trace file to a Trace."""

from itertools import chain
from pathlib import Path

from replay.traces.assembly import Defaults, assemble
from replay.traces.bailian import BAILIAN
from replay.traces.baseten import BASETEN
from replay.traces.errors import FormatError, Place
from replay.traces.lengths import AZURE, BURSTGPT, DECISIONS
from replay.traces.mooncake import MOONCAKE
from replay.traces.recorder import RECORDER
from replay.traces.row import Format
from replay.traces.source import Value, read_values
from replay.traces.text import Characters, TextTokens
from replay.traces.texts import AIBRIX, LMCACHE, OTEL, SHAREGPT
from replay.traces.trace import Trace
from replay.traces.tracelab import TRACELAB
from replay.traces.weka import WEKA

FORMATS: tuple[Format, ...] = (
    RECORDER,
    BAILIAN,
    BASETEN,
    WEKA,
    LMCACHE,
    SHAREGPT,
    AIBRIX,
    OTEL,
    TRACELAB,
    AZURE,
    BURSTGPT,
    DECISIONS,
    MOONCAKE,  # last: its marks are also fields of others
)

TEXT_BLOCK_TOKENS = 16
"""vLLM's default, and a divisor of every block size in use: texts lose nothing when the blocks are made larger."""

SHOWN_NAMES = 8


def read_trace(
    path: Path,
    *,
    text: TextTokens | None = None,
    block_tokens: int | None = None,
    output_tokens: int | None = None,
) -> Trace:
    """The trace in a file, or in all files of a directory taken together, gzip or not.

    `text` makes tokens of texts, by default a token of each character. `block_tokens` is the size of the blocks that
    hashes name (and that texts are cut into) where the file does not say: by default what the format is published
    with, and 16 for texts. `output_tokens` is the answer's length where a row does not say.

    Raises FormatError for what cannot be read, and OSError.
    """
    values = read_values(path)
    first = next(values, None)
    if first is None:
        raise FormatError(Place(str(path)), "is empty; expected a trace")
    format = _recognised(first)
    defaults = Defaults(
        text=text or Characters(),
        hash_block_tokens=block_tokens or format.block_tokens,
        text_block_tokens=block_tokens or TEXT_BLOCK_TOKENS,
        output_tokens=output_tokens,
    )
    trace = assemble(format.name, format.rows(chain([first], values)), defaults)
    if trace is None:
        raise FormatError(Place(str(path)), f"has no request in it, though it looks like {format.name}")
    return trace


def _recognised(first: Value) -> Format:
    names = first.fields.keys()
    for format in FORMATS:
        if any(mark <= names for mark in format.marks):
            return format
    shown = ", ".join(list(names)[:SHOWN_NAMES]) or "none"
    known = ", ".join(format.name for format in FORMATS)
    raise FormatError(first.place, f"has fields of no known format: {shown}; expected a trace of one of {known}")
