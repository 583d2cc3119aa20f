"""`warmroute replay TRACE --live URL`: from the command's options to a report that is shown and written."""

from pathlib import Path
from random import randrange

import uvloop

from replay.arrivals import LoadSpec
from replay.live.api import Api
from replay.live.replay import Target, replay_live
from replay.live.report import as_json
from replay.live.table import as_table
from replay.output import progress_bars, show, write_json
from replay.processes import interruptible
from replay.traces.tokens import MAX_SEED
from replay.traces.trace import Trace


def run_live(
    trace: Trace,
    load: LoadSpec,
    url: str,
    *,
    api: str | None,
    model: str | None,
    vocabulary: range,
    worker_urls: tuple[str, ...],
    seed: int | None,
    json_path: Path | None,
) -> None:
    """Without `seed` the prompts are others than those of any run before, which the workers may have cached.

    Raises UnusableEndpoint, NothingAnswered, Interrupted, and OSError.
    """
    if seed is None:
        seed = randrange(MAX_SEED)
    target = Target(url, Api(api) if api else None, model, vocabulary, seed, worker_urls)
    with progress_bars() as progress:
        task = progress.add_task(url, total=len(trace.requests))
        result = uvloop.run(interruptible(replay_live(trace, load, target, lambda: progress.advance(task))))
    if json_path is not None:
        write_json(json_path, as_json(result))
    show(as_table(result))
