"""The links to the workers: one for each worker of the core's fleet, kept in step with it."""

import asyncio
from collections.abc import Callable, Mapping

from protocol.errors import Conflict
from router.config import WorkerSpec
from router.core import RouterCore
from router.fleet import worker_id
from router.worker_link import WorkerLink


class Workers:
    """Adds and drains workers. A drained worker's link ends by itself, after the last request there."""

    def __init__(self, core: RouterCore, make_link: Callable[[str, WorkerSpec], WorkerLink]) -> None:
        self._core, self._make_link = core, make_link
        self._links: dict[str, WorkerLink] = {}

    @property
    def links(self) -> Mapping[str, WorkerLink]:
        return self._links

    def add(self, spec: WorkerSpec) -> str:
        """The new worker's id. Raises InvalidRequest (bad URL) or Conflict (it is here, or still leaving)."""
        if worker_id(spec.url) in self._links:
            raise Conflict(f"worker {worker_id(spec.url)!r} is here already, or still leaving", param="url")
        worker = self._core.add_worker(spec.url)
        self._links[worker] = link = self._make_link(worker, spec)
        link.start(lambda: self._links.pop(worker))
        return worker

    def drain(self, worker: str) -> int:
        """Place nothing more on it; returns the requests that it still serves. Raises NotFound."""
        in_flight = self._core.drain_worker(worker)
        self._links[worker].probe_soon()
        return in_flight

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in list(self._links.values())))
