"""The links to the workers: one for each worker of the core's fleet, kept in step with it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from protocol.errors import Conflict
from router.config import WorkerSpec
from router.core import RouterCore
from router.fleet import worker_id
from router.worker_link import WorkerLink


@dataclass(frozen=True, slots=True)
class Roster:
    """The workers that there are to be, by id. Of two rosters the later `version` holds."""

    version: int = 0
    specs: Mapping[str, WorkerSpec] = field(default_factory=dict)


class Workers:
    """Adds and drains workers. A drained worker's link ends by itself, after the last request there."""

    def __init__(self, core: RouterCore, make_link: Callable[[str, WorkerSpec], WorkerLink]) -> None:
        self._core, self._make_link = core, make_link
        self._links: dict[str, WorkerLink] = {}
        self._roster: Roster | None = None

    @property
    def links(self) -> Mapping[str, WorkerLink]:
        return self._links

    def add(self, spec: WorkerSpec) -> str:
        """The new worker's id. Raises InvalidRequest (bad URL) or Conflict (it is here, or still leaving)."""
        if worker_id(spec.url) in self._links:
            raise Conflict(f"worker {worker_id(spec.url)!r} is here already, or still leaving", param="url")
        worker = self._core.add_worker(spec.url)
        self._links[worker] = link = self._make_link(worker, spec)
        link.start(lambda: self._ended(worker))
        return worker

    def drain(self, worker: str) -> int:
        """Place nothing more on it; returns the requests that it still serves. Raises NotFound."""
        in_flight = self._core.drain_worker(worker)
        self._links[worker].probe_soon()
        return in_flight

    def follow(self, roster: Roster) -> None:
        """Add and drain until the workers are those of `roster`. Who is still leaving is added when it has left."""
        if self._roster is None or roster.version > self._roster.version:
            self._roster = roster
            self._catch_up(roster.specs)

    def _catch_up(self, specs: Mapping[str, WorkerSpec]) -> None:
        for worker, link in list(self._links.items()):
            if specs.get(worker) != link.spec and self._core.has_worker(worker):
                self.drain(worker)
        for spec in [spec for worker, spec in specs.items() if worker not in self._links]:
            self.add(spec)

    def _ended(self, worker: str) -> None:
        del self._links[worker]
        if self._roster is not None:
            self._catch_up(self._roster.specs)

    async def checked(self) -> None:
        """Until it is known of each worker whether it answers."""
        await asyncio.gather(*(link.checked.wait() for link in self._links.values()))

    async def close(self) -> None:
        self._roster = None
        await asyncio.gather(*(link.close() for link in list(self._links.values())))
