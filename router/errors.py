"""Failures of a worker, as the shells tell each other. They never reach a client: the relay turns them into answers.

WorkerFailed        this attempt got no answer; another worker may
├── WorkerLost      the connection broke or the worker was declared down
└── WorkerBusy      it answered 429 or 503: backpressure, not a fault
"""

from router.http.answers import Response


class WorkerFailed(Exception):
    """An attempt failed before its first byte."""


class WorkerLost(WorkerFailed):
    pass


class WorkerBusy(WorkerFailed):
    """`response` is the worker's own answer, for the client if nobody else can take the request."""

    def __init__(self, worker: str, response: Response) -> None:
        super().__init__(f"{worker} answered {response.status}")
        self.response = response
