"""Files that a command writes."""

from pathlib import Path
from typing import Any

import click


class OutputPath(click.Path):
    """A file to write, in a directory that is there: told at once, not after minutes of work."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path: Path = super().convert(value, param, ctx)  # type: ignore[assignment]
        if not path.parent.is_dir():
            self.fail(f"Directory {str(path.parent)!r} does not exist.", param, ctx)
        return path
