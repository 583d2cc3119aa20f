"""Any trace as Mooncake JSON lines, which aiperf, Dynamo, vLLM, SGLang and GuideLLM read."""

from pathlib import Path
from typing import Any

import orjson

from replay.traces.blocks import rechunked
from replay.traces.trace import Trace, TraceRequest


def write_mooncake(trace: Trace, path: Path, block_tokens: int = 512) -> None:
    """Lengths, times, sessions and hashes of `block_tokens`, numbered by first use; texts stay behind.

    A trace without prefixes is written without hashes. Raises OSError.
    """
    numbers: dict[int, int] = {}
    with path.open("wb") as file:
        for request in rechunked(trace, block_tokens).requests:
            row = _row(request)
            if trace.has_prefixes:
                row["hash_ids"] = [numbers.setdefault(name, len(numbers)) for name in request.hash_ids]
            file.write(orjson.dumps(row) + b"\n")


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
