"""What the replay's commands share in showing and writing: progress goes to stderr, the result to stdout."""

from pathlib import Path
from typing import Any

import orjson
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


def progress_bars() -> Progress:
    """Use it as a context manager."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


def show(result: RenderableType) -> None:
    Console().print(result)


def write_json(path: Path, result: dict[str, Any]) -> None:
    """Raises OSError."""
    path.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))
