"""One worker as the shells see it: probed, discovered when it comes up, its events followed, cut off when it goes down.

probe good, not joined   -> discover, learn its tokenizer, tell the core it is up, subscribe
probe good, events lost  -> discover again: an engine that restarted may publish elsewhere
connection refused, or two bad probes in a row -> down: the core drops its tree, what waits on it is cut off
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from kv_events.deliveries import Delivery, Lost, Reset, ResetReason
from kv_events.sources import EventSource
from kv_events.subscriber import Subscriber, Switchboard
from protocol.errors import UpstreamFailed
from router.config import WorkerSpec
from router.core import RouterCore
from router.discovery import Discovery, describe, discover
from router.http.upstream import Upstream
from router.prompt_reader import PromptReader

BAD_PROBES_UNTIL_DOWN = 2
DISCOVERY_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class WorkerLink:
    """`start` once. Ends by itself when the core has forgotten its worker, else with `close`.

    `probe_soon` when something looked wrong.
    """

    def __init__(
        self,
        worker: str,
        spec: WorkerSpec,
        core: RouterCore,
        prompts: PromptReader,
        upstream: Upstream,
        switchboard: Switchboard,
        *,
        probe_interval_s: float,
        probe_timeout_s: float,
    ) -> None:
        self.worker, self.spec = worker, spec
        self.checked = asyncio.Event()
        """Set once it is known whether the worker answers."""
        self._core, self._prompts = core, prompts
        self._upstream, self._switchboard = upstream, switchboard
        self._probe_interval_s, self._probe_timeout_s = probe_interval_s, probe_timeout_s
        self._bad_probes = 0
        self._joined: Discovery | None = None
        self._events_lost = False
        self._subscribers: list[Subscriber] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, on_end: Callable[[], object]) -> None:
        """`on_end` is called once, when the link has ended."""
        self._task = asyncio.create_task(self._run(), name=f"link {self.worker}")
        self._task.add_done_callback(lambda _: on_end())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def probe_soon(self) -> None:
        self._wake.set()

    async def _run(self) -> None:
        try:
            while self._core.has_worker(self.worker):
                self._wake.clear()
                await self._check()
                self.checked.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._probe_interval_s):  # wait_for loses cancellations in Python 3.11
                        await self._wake.wait()
        finally:
            self.checked.set()
            await self._unsubscribe()

    async def _check(self) -> None:
        try:
            await self._probe()
            self._bad_probes = 0
            if self._joined is None or self._events_lost:
                await self._join()
        except ConnectionRefusedError as error:  # nobody listens: no need to ask twice
            await self._down(describe(error))
        except (OSError, UpstreamFailed) as error:  # TimeoutError is an OSError
            self._bad_probes += 1
            if self._joined is None or self._bad_probes >= BAD_PROBES_UNTIL_DOWN:
                await self._down(describe(error))
        except Exception as error:  # a bug of ours: this worker is not to be trusted, the others go on
            log.exception("worker %s cannot be followed", self.worker)
            await self._down(f"internal error: {describe(error)}")

    async def _probe(self) -> None:
        try:
            async with asyncio.timeout(self._probe_timeout_s):
                status, _ = await self._upstream.get(self.spec.url, "/health", max_bytes=0)
        except TimeoutError as error:
            raise TimeoutError(f"/health: {str(error) or f'no answer in {self._probe_timeout_s} s'}") from error
        if status != 200:
            raise UpstreamFailed(f"/health answered {status}")

    async def _join(self) -> None:
        self._events_lost = False
        found = await discover(self._upstream, self.spec, DISCOVERY_TIMEOUT_S)
        await self._prompts.learn(found.info.models)
        moved = self._joined is None or found.sources != self._joined.sources
        if moved:
            await self._unsubscribe()
            self._joined = None
        self._core.on_worker_up(self.worker, found.info)
        if moved:
            self._subscribe(found.sources)
            log.info("worker %s is up: models %s, events %s", self.worker, _names(found), _endpoints(found.sources))
        self._joined = found

    def _subscribe(self, sources: tuple[EventSource, ...]) -> None:
        for source in sources:
            self._core.on_kv_events(self.worker, source.rank, Reset(ResetReason.RESTART))
            subscriber = Subscriber(source, self._deliver(source.rank), self._switchboard)
            self._subscribers.append(subscriber)
            subscriber.start()

    def _deliver(self, rank: int) -> Callable[[Delivery], None]:
        def deliver(delivery: Delivery) -> None:
            self._core.on_kv_events(self.worker, rank, delivery)
            if isinstance(delivery, Lost | Reset):
                log.warning("worker %s rank %d: %s", self.worker, rank, delivery)
            if isinstance(delivery, Lost):
                self._events_lost = True
                self.probe_soon()

        return deliver

    async def _down(self, reason: str) -> None:
        if self._joined is not None:
            log.warning("worker %s is down: %s", self.worker, reason)
        self._joined, self._bad_probes = None, 0
        self._core.on_worker_down(self.worker, reason)
        self._upstream.cut_off(self.spec.url, f"declared down: {reason}")
        await self._unsubscribe()

    async def _unsubscribe(self) -> None:
        subscribers, self._subscribers = self._subscribers, []
        for subscriber in subscribers:
            await subscriber.close()


def _names(found: Discovery) -> str:
    return ", ".join(card.id for card in found.info.models)


def _endpoints(sources: tuple[EventSource, ...]) -> str:
    return ", ".join(source.endpoint for source in sources) or "none: placed on by what it was sent"
