"""Cutting off what waits on a worker when the worker is declared down."""

import asyncio
from types import TracebackType

from router.errors import WorkerLost


class Lifeline:
    """One worker's. A dead connection tells its reader; a worker that hangs does not, so its probes have to."""

    def __init__(self) -> None:
        self._scopes: set[_Scope] = set()

    def hold(self) -> "_Scope":
        """A context manager around work that waits on the worker: raises WorkerLost in it when `cut` is called.

        Cancellation from elsewhere (a client that went away) passes through, told apart as asyncio.timeout does.
        """
        return _Scope(self._scopes)

    def cut(self, reason: str) -> None:
        for scope in self._scopes:
            scope.cut(reason)


class _Scope:
    __slots__ = ("_cancelling", "_open", "_reason", "_task")

    def __init__(self, open_scopes: "set[_Scope]") -> None:
        task = asyncio.current_task()
        assert task is not None, "runs in a task"
        self._task, self._cancelling, self._open = task, task.cancelling(), open_scopes
        self._reason: str | None = None

    def __enter__(self) -> None:
        self._open.add(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._open.discard(self)
        if kind is asyncio.CancelledError and self._reason is not None and self._task.uncancel() <= self._cancelling:
            raise WorkerLost(self._reason) from None

    def cut(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
            self._task.cancel()
