"""What a format's reader makes of a file: rows as the file tells them, before names, turns and times are settled."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from replay.traces.errors import Place
from replay.traces.source import Value
from replay.traces.trace import Prompt


@dataclass(frozen=True, slots=True)
class Row:
    """A request as its file has it. `arrival_s` counts from any zero, the same for all rows of a file.

    What a prompt shares comes from at most one of three: `hashes` of its blocks, within `scope` (None: the whole
    trace); the `prompt` itself; or `shared_tokens`, the part of it that the session's previous prompt began with.
    `output_tokens` beats the length of `answer`, where both are given.
    """

    place: Place
    input_tokens: int | None = None
    output_tokens: int | None = None
    answer: str | None = None
    hashes: Sequence[Hashable] | None = None
    block_tokens: int | None = None
    scope: str | None = None
    prompt: Prompt | None = None
    shared_tokens: int | None = None
    arrival_s: float | None = None
    duration_s: float | None = None
    """From arrival to the end of the answer."""
    delay_s: float | None = None
    session: str | None = None


Reader: TypeAlias = Callable[[Iterator[Value]], Iterator[Row]]


@dataclass(frozen=True, slots=True)
class Format:
    """A file is of this format if its first row has all names of one of `marks`. `block_tokens`: of its hashes, where
    a row does not say."""

    name: str
    marks: tuple[frozenset[str], ...]
    rows: Reader
    block_tokens: int = 512
