"""The one error of a trace file."""

from typing import NamedTuple


class Place(NamedTuple):
    """Where in a file a row is: a line, an item of a JSON list or a Parquet table, or nothing smaller than the file."""

    file: str
    line: int | None = None
    item: int | None = None

    def __str__(self) -> str:
        if self.line is not None:
            return f"{self.file}, line {self.line}"
        return self.file if self.item is None else f"{self.file}, item {self.item}"


class FormatError(ValueError):
    """A trace file cannot be read. The message says where, what is wrong, and what is expected there."""

    def __init__(self, place: Place, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place
