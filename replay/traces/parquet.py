"""Parquet files as rows, for who has installed the extra `parquet`."""

from collections.abc import Iterator
from typing import Any, BinaryIO

from replay.traces.errors import FormatError, Place

PARQUET_MAGIC = b"PAR1"


def parquet_rows(file: BinaryIO, name: str) -> Iterator[dict[str, Any]]:
    """A batch at a time. Raises FormatError where pyarrow is missing, or the file is not whole."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        problem = "is a Parquet file, for which pyarrow is needed: pip install 'warmroute[parquet]'"
        raise FormatError(Place(name), problem) from error
    try:
        for batch in ParquetFile(file).iter_batches():
            yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise FormatError(Place(name), f"is not a whole Parquet file: {error}") from error
