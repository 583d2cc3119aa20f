"""The workers and their slots: who is there, in what health, serving which models.

A slot is one place with a prefix cache of its own: a worker, or one data-parallel rank of it. Slots share one space of
small ints (their bit in the index's masks); a bit is given out again only when nothing in flight refers to it.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from protocol.errors import ApiError, Conflict, InvalidRequest, ModelNotFound, NotFound, Unavailable
from router.index import PrefixIndex
from router.load import SlotLoad
from router.records import CacheState, SlotReport, WorkerInfo, WorkerReport

RETRY_AFTER_S = 1.0
"""Told to clients when no worker can take a request: about one health probe."""


class Health(StrEnum):
    """JOINING -> UP on the first good probe; UP <-> DOWN with probes after that."""

    JOINING = "joining"
    UP = "up"
    DOWN = "down"


@dataclass(slots=True, eq=False)
class Slot:
    id: str
    worker: "Worker"
    rank: int
    bit: int
    load: SlotLoad
    cache_state: CacheState
    block_size: int | None
    generation: int = 0  # +1 whenever the known cache was dropped
    last_placed: int = 0

    def __repr__(self) -> str:
        return f"<Slot {self.id} {self.cache_state} active={self.load.active_requests}>"


@dataclass(slots=True, eq=False)
class Worker:
    id: str
    url: str
    health: Health = Health.JOINING
    reason: str | None = "not probed yet"
    draining: bool = False
    info: WorkerInfo | None = None
    slots: list[Slot] = field(default_factory=list)

    @property
    def in_flight(self) -> int:
        return sum(slot.load.active_requests for slot in self.slots)

    def serves(self, model: str | None) -> bool:
        if self.info is None or model is None:
            return self.info is not None
        return any(card.id == model for card in self.info.models)

    def __repr__(self) -> str:
        return f"<Worker {self.id} {self.health}{' draining' if self.draining else ''} slots={self.slots}>"


def worker_id(url: str) -> str:
    """`host:port` of a worker's base URL. Raises InvalidRequest for anything that is not http(s)://host[:port]."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise InvalidRequest(f"worker URL {url!r} must look like http://HOST:PORT", param="url")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port or (443 if parts.scheme == 'https' else 80)}"


class Fleet:
    """Owns workers, slots and their bits; opens and closes slots in the index."""

    def __init__(self, index: PrefixIndex, *, prior_prefill_tokens_per_s: float) -> None:
        self._index = index
        self._prior_prefill_tokens_per_s = prior_prefill_tokens_per_s
        self._workers: dict[str, Worker] = {}
        self._slots: dict[int, Slot] = {}  # by bit; slots of a worker that left stay until their last request ends

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __getitem__(self, worker: str) -> Worker:
        try:
            return self._workers[worker]
        except KeyError:
            known = ", ".join(self._workers) or "none"
            raise NotFound(f"no worker {worker!r}; workers: {known}", param="id") from None

    def __contains__(self, worker: str) -> bool:
        return worker in self._workers

    def slot(self, worker: str, rank: int) -> Slot | None:
        found = self._workers.get(worker)
        return next((slot for slot in found.slots if slot.rank == rank), None) if found else None

    def trusted(self) -> int:
        """The slots whose held blocks may be believed, as a mask."""
        return sum(1 << bit for bit, slot in self._slots.items() if slot.cache_state is CacheState.LIVE)

    # Joining and leaving

    def add(self, url: str) -> Worker:
        name = worker_id(url)
        if name in self._workers:
            raise Conflict(f"worker {name!r} is here already", param="url")
        self._workers[name] = worker = Worker(name, url.rstrip("/"))
        return worker

    def drain(self, worker: Worker) -> None:
        """Place nothing more there; gone once its last request has ended."""
        worker.draining = True
        self.forget_if_drained(worker)

    def forget_if_drained(self, worker: Worker) -> None:
        if worker.draining and not worker.in_flight and self._workers.get(worker.id) is worker:
            self._close_slots(worker, worker.slots)
            del self._workers[worker.id]

    def up(self, worker: Worker, info: WorkerInfo) -> None:
        """The worker answers, and discovery learned `info`. Slots of ranks that it has no more are closed."""
        worker.health, worker.reason, worker.info = Health.UP, None, info
        self._close_slots(worker, [slot for slot in worker.slots if slot.rank not in info.ranks])
        known = {slot.rank for slot in worker.slots}
        worker.slots += [self._open_slot(worker, rank) for rank in info.ranks if rank not in known]
        for slot in worker.slots:
            slot.block_size = info.block_size or slot.block_size
            if not info.publishes_events:
                slot.cache_state = CacheState.UNKNOWN
            elif slot.cache_state is CacheState.UNKNOWN:
                slot.cache_state = CacheState.SYNCING

    def down(self, worker: Worker, reason: str) -> None:
        """The worker is gone, and its cache with it."""
        worker.health, worker.reason = Health.DOWN, reason
        for slot in worker.slots:
            self.drop_cache(slot)
            slot.cache_state = CacheState.SYNCING

    def drop_cache(self, slot: Slot) -> None:
        self._index.clear(slot.bit)
        slot.generation += 1

    def _open_slot(self, worker: Worker, rank: int) -> Slot:
        bit = next(bit for bit in range(len(self._slots) + 1) if bit not in self._slots)
        name = worker.id if rank == 0 else f"{worker.id}@{rank}"
        load = SlotLoad(self._prior_prefill_tokens_per_s)
        self._slots[bit] = slot = Slot(name, worker, rank, bit, load, CacheState.SYNCING, None)
        self._index.open(bit)
        return slot

    def _close_slots(self, worker: Worker, closing: list[Slot]) -> None:
        worker.slots = [slot for slot in worker.slots if slot not in closing]
        for slot in closing:
            self._index.close(slot.bit)
            slot.cache_state = CacheState.STALE
            self.release_bit(slot)

    def release_bit(self, slot: Slot) -> None:
        """Called when a request ends: a closed slot's bit is free again after its last one."""
        if slot not in slot.worker.slots and not slot.load.active_requests:
            self._slots.pop(slot.bit, None)

    # Choosing from

    def eligible(self, model: str | None, tried: Collection[str]) -> list[Slot]:
        """The slots that may serve `model` now, without those of the workers `tried`.

        Raises ModelNotFound (no worker serves it), or Unavailable (none that could is up, or all were tried).
        """
        serving = [worker for worker in self if worker.serves(model)]
        if not serving:
            raise self._nobody_serves(model)
        ready = [w for w in serving if w.health is Health.UP and not w.draining and w.id not in tried]
        if not ready:
            states = "; ".join(
                f"{w.id} {w.reason or ('was tried' if w.id in tried else 'is draining')}" for w in serving
            )
            raise Unavailable(f"no worker can take this request now: {states}", retry_after_s=RETRY_AFTER_S)
        return [slot for worker in ready for slot in worker.slots]

    def _nobody_serves(self, model: str | None) -> ApiError:
        joining = [worker.id for worker in self if worker.info is None]
        if joining or not self._workers:
            what = f"not reached yet: {', '.join(joining)}" if joining else "the router has no workers"
            return Unavailable(f"no worker is ready: {what}", retry_after_s=RETRY_AFTER_S)
        served = sorted({card.id for worker in self if worker.info for card in worker.info.models})
        return ModelNotFound(f"the model {model!r} does not exist here; models: {', '.join(served)}", param="model")

    # Reporting

    def report(self, worker: Worker, now: float) -> WorkerReport:
        models = tuple(card.id for card in worker.info.models) if worker.info else ()
        slots = tuple(self._slot_report(slot, now) for slot in worker.slots)
        return WorkerReport(worker.id, worker.url, worker.health, worker.draining, worker.reason, models, slots)

    def _slot_report(self, slot: Slot, now: float) -> SlotReport:
        stats = self._index.stats(slot.bit)
        return SlotReport(
            slot=slot.id,
            rank=slot.rank,
            cache_state=slot.cache_state,
            generation=slot.generation,
            block_size=slot.block_size,
            blocks=stats.blocks,
            orphans=stats.orphans,
            orphans_dropped=stats.orphans_dropped,
            unmappable_events=stats.unmappable,
            evicted_blocks=stats.evicted,
            active_requests=slot.load.active_requests,
            queued_prefill_tokens=slot.load.queued_prefill_tokens(now),
            decode_tokens=slot.load.decode_tokens,
            prefill_tokens_per_s=slot.load.rate.tokens_per_s,
        )
