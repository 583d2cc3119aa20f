"""Any trace as Mooncake JSON lines, which aiperf, Dynamo, vLLM, SGLang and GuideLLM read."""

import gzip
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from replay.traces.blocks import rechunked
from replay.traces.mooncake import MOONCAKE
from replay.traces.trace import Trace, TraceRequest


def write_mooncake(trace: Trace, path: Path, block_tokens: int = MOONCAKE.block_tokens) -> None:
    """Lengths, times, sessions and hashes of `block_tokens`, numbered by first use; texts stay behind.

    Rows say the size of their blocks (`block_size`) if it is not Mooncake's. A trace without prefixes is written
    without hashes. A name that ends with .gz is written so. Raises OSError.
    """
    numbers: dict[int, int] = {}
    with _opened(path) as file:
        for request in rechunked(trace, block_tokens).requests:
            row = _row(request)
            if trace.has_prefixes:
                row["hash_ids"] = [numbers.setdefault(name, len(numbers)) for name in request.hash_ids]
                if block_tokens != MOONCAKE.block_tokens:
                    row["block_size"] = block_tokens
            file.write(orjson.dumps(row) + b"\n")


def _opened(path: Path) -> BinaryIO:
    """Without the time in its head, so that the same trace makes the same file."""
    return cast(BinaryIO, gzip.GzipFile(path, "wb", mtime=0)) if path.suffix == ".gz" else path.open("wb")


def _row(request: TraceRequest) -> dict[str, Any]:
    fields = {
        "timestamp": _milliseconds(request.arrival_s),
        "delay": _milliseconds(request.delay_s),
        "session_id": request.session,
        "input_length": request.input_tokens,
        "output_length": request.output_tokens,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _milliseconds(seconds: float | None) -> int | float | None:
    if seconds is None:
        return None
    milliseconds = round(seconds * 1e3, 3)
    return int(milliseconds) if milliseconds.is_integer() else milliseconds
