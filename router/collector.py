"""Python's search for cycles of garbage, kept short.

A full search looks at every object and stops all streams meanwhile: 0.1 s for a million blocks of short prompts, and as
long for what a tokenizer's libraries bring. Next to none of it is in cycles. So what has survived a long search is not
looked at again; it still goes when nothing refers to it any more.
"""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter

LONG_S = 0.01


@contextmanager
def short_collections(long_s: float = LONG_S) -> Iterator[None]:
    """While the block runs, a full search that took longer is the last one for what it left."""
    started_s = 0.0

    def watch(phase: str, search: Mapping[str, int]) -> None:
        nonlocal started_s
        if phase == "start":
            started_s = perf_counter()
        elif search["generation"] == 2 and perf_counter() - started_s > long_s:
            gc.freeze()

    gc.callbacks.append(watch)
    try:
        yield
    finally:
        gc.callbacks.remove(watch)
