"""Cutting off what waits on a worker when the worker is declared down."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from router.errors import WorkerLost


@dataclass(slots=True, eq=False)
class _Scope:
    task: asyncio.Task[object]
    cancelling: int
    reason: str | None = None


class Lifeline:
    """One worker's. A dead connection tells its reader; a worker that hangs does not, so its probes have to."""

    def __init__(self) -> None:
        self._scopes: set[_Scope] = set()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Around work that waits on the worker: raises WorkerLost in it when `cut` is called.

        Cancellation from elsewhere (a client that went away) passes through, told apart as asyncio.timeout does.
        """
        task = asyncio.current_task()
        assert task is not None, "runs in a task"
        scope = _Scope(task, task.cancelling())
        self._scopes.add(scope)
        try:
            yield
        except asyncio.CancelledError:
            if scope.reason is not None and task.uncancel() <= scope.cancelling:
                raise WorkerLost(scope.reason) from None
            raise
        finally:
            self._scopes.discard(scope)

    def cut(self, reason: str) -> None:
        for scope in self._scopes:
            if scope.reason is None:
                scope.reason = reason
                scope.task.cancel()
