"""Files as streams of plain values: JSON lines, JSON documents, CSV tables, gzip or not; Parquet; directories of them.

What a file is follows from its content, never from its name.
"""

import csv
import gzip
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import orjson

from replay.traces.errors import FormatError, Place
from replay.traces.parquet import PARQUET_MAGIC, parquet_rows

GZIP_MAGIC = b"\x1f\x8b"
IN_DIRECTORIES = {".json", ".jsonl", ".csv", ".parquet"}
"""A directory may hold a README beside its traces."""


class Value(NamedTuple):
    """One row: a JSON object, a row of a Parquet file, or one of a CSV table with numbers parsed."""

    place: Place
    fields: dict[str, Any]


def read_values(path: Path) -> Iterator[Value]:
    """The rows of a file, or of all files in a directory in the order of their names. Raises FormatError, OSError."""
    if not path.is_dir():
        return _read_file(path)
    return chain.from_iterable(_read_file(file) for file in sorted(path.iterdir()) if _is_data(file))


def _is_data(file: Path) -> bool:
    return bool(IN_DIRECTORIES & set(file.suffixes[-2:])) and not file.name.startswith(".")


def _read_file(path: Path) -> Iterator[Value]:
    with _opened(path) as file:
        try:
            first = _first_line(file)
            file.seek(0)
            if not first:
                return
            if first.startswith(PARQUET_MAGIC):
                rows = enumerate(parquet_rows(file, str(path)), 1)
                yield from (Value(Place(str(path), item=number), row) for number, row in rows)
            elif first[:1] not in (b"{", b"["):
                yield from _csv_rows(file, str(path))
            elif first.startswith(b"{") and _is_json(first):
                yield from _json_lines(file, str(path))
            else:
                yield from _json_document(file, str(path))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise FormatError(Place(str(path)), f"is not a whole gzip file: {error}") from error
        except csv.Error as error:
            raise FormatError(Place(str(path)), f"is neither JSON nor a CSV table: {error}") from error
        except UnicodeDecodeError as error:
            raise FormatError(Place(str(path)), "is neither JSON nor CSV: it is not UTF-8 text") from error


def _opened(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        zipped = file.read(2) == GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path)) if zipped else path.open("rb")


def _first_line(file: BinaryIO) -> bytes:
    return next((stripped for line in file if (stripped := line.strip())), b"")


def _is_json(text: bytes) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _json_lines(file: BinaryIO, name: str) -> Iterator[Value]:
    for number, line in enumerate(file, 1):
        if not line.isspace():
            place = Place(name, line=number)
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise _not_json(place, error) from error
            yield _value(place, value)


def _json_document(file: BinaryIO, name: str) -> Iterator[Value]:
    text = file.read()
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _not_json(Place(name, line=error.lineno), error) from error
    if not isinstance(document, list):
        yield _value(Place(name), document)
        return
    for number, item in enumerate(document, 1):
        yield _value(Place(name, item=number), item)


def _csv_rows(file: BinaryIO, name: str) -> Iterator[Value]:
    rows = csv.DictReader(line.decode("utf-8-sig") for line in file)
    for row in rows:
        place = Place(name, line=rows.line_num)
        if None in row or None in row.values():
            raise FormatError(place, f"does not have the header's {len(rows.fieldnames or ())} columns")
        yield Value(place, {column: _cell(text) for column, text in row.items()})


def _not_json(place: Place, error: orjson.JSONDecodeError) -> FormatError:
    return FormatError(place, f"is not JSON ({error}); expected a JSON object")


def _value(place: Place, value: Any) -> Value:
    if not isinstance(value, dict):
        raise FormatError(place, f"is a JSON {type(value).__name__}; expected a JSON object")
    return Value(place, value)


def _cell(text: str) -> int | float | str:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text
