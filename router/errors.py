"""Failures of a worker, as the shells tell each other. They never reach a client: the relay turns them into answers.

WorkerFailed        this attempt got no answer; another worker may
├── WorkerLost      the connection broke or the worker was declared down
└── WorkerBusy      it answered 429 or 503: backpressure, not a fault
"""

from multidict import CIMultiDict


class WorkerFailed(Exception):
    """An attempt failed before its first byte."""


class WorkerLost(WorkerFailed):
    pass


class WorkerBusy(WorkerFailed):
    """`body` and `headers` are the worker's own answer, for the client if nobody else can take the request."""

    def __init__(self, worker: str, status: int, headers: CIMultiDict[str], body: bytes) -> None:
        super().__init__(f"{worker} answered {status}")
        self.status, self.headers, self.body = status, headers, body
