"""Typed reads of a row's fields; what does not fit is a FormatError that says where, what and what is expected."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from replay.traces.errors import FormatError, Place
from replay.traces.source import Value

SHOWN_CHARS = 60


class Fields:
    """One JSON object of a row: the row itself, or, at `path`, an object within it."""

    __slots__ = ("_path", "_values", "place")

    def __init__(self, place: Place, values: Mapping[str, Any], path: str = "") -> None:
        self.place, self._values, self._path = place, values, path

    @classmethod
    def of(cls, value: Value) -> "Fields":
        return cls(value.place, value.fields)

    def __contains__(self, name: str) -> bool:
        """Whether the field is given; null is not."""
        return self._values.get(name) is not None

    def wrong(self, name: str, expected: str) -> FormatError:
        if self._values.get(name) is None:
            return FormatError(self.place, f"'{self._path}{name}' is missing; expected {expected}")
        return FormatError(self.place, f"'{self._path}{name}' is {_shown(self._values[name])}; expected {expected}")

    def either(self, *names: str) -> str:
        """The first of these names that is given, or the first of all."""
        return next((name for name in names if name in self), names[0])

    def count(self, name: str, least: int = 0) -> int:
        value = self._values.get(name)
        if type(value) is not int or value < least:
            raise self.wrong(name, f"a whole number of at least {least}")
        return value

    def optional_count(self, name: str) -> int | None:
        return self.count(name) if name in self else None

    def number(self, name: str) -> float:
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise self.wrong(name, "a number")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return self.number(name) if name in self else None

    def text(self, name: str) -> str:
        value = self._values.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, "a text")
        return value

    def is_text(self, name: str) -> bool:
        return isinstance(self._values.get(name), str)

    def key(self, name: str) -> str | None:
        """An identifier, a text or a number in the file; None where it is not given."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str | int | float):
            raise self.wrong(name, "a text or a number")
        return None if value is None else str(value)

    def time_s(self, name: str) -> float:
        """A date and time of ISO 8601, in seconds since 1970; without a zone it is UTC."""
        text = self.text(name)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise self.wrong(name, "a date and time (ISO 8601)") from error
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

    def hashes(self, name: str) -> Sequence[int | str]:
        values = self._values.get(name)
        if not isinstance(values, list) or not set(map(type, values)) <= {int, str}:
            raise self.wrong(name, "a list of block hashes (whole numbers or texts)")
        return values

    def inner(self, name: str) -> "Fields":
        value = self._values.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(self.place, value, f"{self._path}{name}.")

    def objects(self, name: str) -> Iterator["Fields"]:
        for place, value in enumerate(self.mappings(name)):
            yield Fields(self.place, value, f"{self._path}{name}[{place}].")

    def mappings(self, name: str) -> tuple[Mapping[str, Any], ...]:
        values = self._values.get(name)
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise self.wrong(name, "a list of objects")
        return tuple(values)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."
