"""Where a router's process writes its log."""

import logging
import sys


def log_to_stderr(level: str, process: int | None = None) -> None:
    """`level` is an option's value. `process` is named in each line, where there are several."""
    whose = "" if process is None else f"process {process} "
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format=f"%(asctime)s %(levelname)s {whose}%(name)s: %(message)s"
    )
