"""The workers and their slots: who is there, in what health, serving which models.

A slot is one place with a prefix cache of its own: a worker, or one data-parallel rank of it. Slots share one space of
small ints (their bit in the index's masks); a bit is given out again only when nothing in flight refers to it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from kv_events.hashing import root_hash
from protocol.errors import ApiError, Conflict, InvalidRequest, ModelNotFound, NotFound, Unavailable
from router.index import PrefixIndex
from router.load import LoadTable, SlotLoad
from router.records import CacheState, SlotReport, WorkerInfo, WorkerReport

RETRY_AFTER_S = 1.0
"""Told to clients when no worker can take a request: about one health probe."""

ASSUMED_BLOCK_SIZE = 128
"""Tokens of a block where no engine says it: of workers without events, and of prompts known as text only."""


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


@dataclass(frozen=True, slots=True)
class Naming:
    """How the blocks of a prompt are named, and which slots may have them, as masks."""

    adapter: str | None  # hashed into every block
    root: int  # of prompts without a salt
    by_block_size: tuple[tuple[int, int], ...]  # the slots that have each, the smallest first
    trusted: int  # those whose held blocks may be believed

    @classmethod
    def of(cls, adapter: str | None, by_block_size: Mapping[int, int], trusted: int) -> "Naming":
        return cls(adapter, root_hash(adapter), tuple(sorted(by_block_size.items())), trusted)

    def root_for(self, salt: str | None) -> int:
        return root_hash(self.adapter, salt) if salt else self.root


@dataclass(frozen=True, slots=True)
class Lineup:
    """The slots that may serve a model, and what of them stays the same from request to request."""

    slots: tuple[Slot, ...]
    names: tuple[str, ...]
    bits: NDArray[np.intp]
    width: int  # above every bit
    cache_states: tuple[CacheState, ...]
    tokens: Naming
    texts: Naming  # share nothing with tokens, nor with texts for another model; no engine announces them

    @classmethod
    def of(cls, slots: Sequence[Slot], model: str | None) -> "Lineup":
        by_block_size: dict[int, int] = {}
        for slot in slots:
            if slot.block_size:
                by_block_size[slot.block_size] = by_block_size.get(slot.block_size, 0) | 1 << slot.bit
        cards = [card for slot in slots if slot.worker.info for card in slot.worker.info.models]
        is_adapter = any(card.parent for card in cards if card.id == model)
        live = sum(1 << slot.bit for slot in slots if slot.cache_state is CacheState.LIVE)
        everyone = sum(1 << slot.bit for slot in slots)
        return cls(
            tuple(slots),
            tuple(slot.id for slot in slots),
            np.array([slot.bit for slot in slots], np.intp),
            1 + max(slot.bit for slot in slots),
            tuple(slot.cache_state for slot in slots),
            tokens=Naming.of(model if is_adapter else None, by_block_size, live),
            texts=Naming.of(f"text for {model}", {ASSUMED_BLOCK_SIZE: everyone}, trusted=0),
        )


class Fleet:
    """Owns workers, slots and their bits; opens and closes slots in the index. A slot's bit is its row in `loads`."""

    def __init__(self, index: PrefixIndex, loads: LoadTable, *, prior_prefill_tokens_per_s: float) -> None:
        self._index, self._loads = index, loads
        self._prior_prefill_tokens_per_s = prior_prefill_tokens_per_s
        self._workers: dict[str, Worker] = {}
        self._slots: dict[int, Slot] = {}  # by bit; slots of a worker that left stay until their last request ends
        self._lineups: dict[str | None, Lineup] = {}  # by model that is served; of the fleet as it is

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

    # Joining and leaving

    def add(self, url: str) -> Worker:
        name = worker_id(url)
        if name in self._workers:
            raise Conflict(f"worker {name!r} is here already", param="url")
        self._workers[name] = worker = Worker(name, url.rstrip("/"))
        self._lineups.clear()
        return worker

    def drain(self, worker: Worker) -> None:
        """Place nothing more there; gone once its last request has ended."""
        worker.draining = True
        self._lineups.clear()
        self._forget_if_drained(worker)

    def _forget_if_drained(self, worker: Worker) -> None:
        if worker.draining and not worker.in_flight and self._workers.get(worker.id) is worker:
            self._close_slots(worker, worker.slots)
            del self._workers[worker.id]
            self._lineups.clear()

    def up(self, worker: Worker, info: WorkerInfo) -> None:
        """The worker answers, and discovery learned `info`. Slots of ranks that it has no more are closed."""
        worker.health, worker.reason, worker.info = Health.UP, None, info
        self._lineups.clear()
        self._close_slots(worker, [slot for slot in worker.slots if slot.rank not in info.ranks])
        known = {slot.rank for slot in worker.slots}
        worker.slots += [self._open_slot(worker, rank) for rank in info.ranks if rank not in known]
        for slot in worker.slots:
            slot.block_size = info.block_size or slot.block_size
            if not info.publishes_events:
                slot.cache_state = CacheState.UNKNOWN
                slot.block_size = slot.block_size or ASSUMED_BLOCK_SIZE
            elif slot.cache_state is CacheState.UNKNOWN:
                slot.cache_state = CacheState.SYNCING

    def down(self, worker: Worker, reason: str) -> None:
        """The worker is gone, and its cache with it."""
        worker.health, worker.reason = Health.DOWN, reason
        self._lineups.clear()
        for slot in worker.slots:
            self.drop_cache(slot)
            slot.cache_state = CacheState.SYNCING

    def drop_cache(self, slot: Slot) -> None:
        self._index.clear(slot.bit)
        slot.load.holds(0)
        slot.generation += 1

    def learn(self, slot: Slot, cache_state: CacheState, block_size: int | None) -> None:
        """What the slot's events say of it, and how far they can be believed."""
        if (cache_state, block_size) != (slot.cache_state, slot.block_size):
            slot.cache_state, slot.block_size = cache_state, block_size
            self._lineups.clear()

    def _open_slot(self, worker: Worker, rank: int) -> Slot:
        name = worker.id if rank == 0 else f"{worker.id}@{rank}"
        bit = self._loads.take(name)
        load = SlotLoad(self._loads, bit, self._prior_prefill_tokens_per_s)
        self._slots[bit] = slot = Slot(name, worker, rank, bit, load, CacheState.SYNCING, None)
        self._index.open(bit)
        return slot

    def _close_slots(self, worker: Worker, closing: list[Slot]) -> None:
        worker.slots = [slot for slot in worker.slots if slot not in closing]
        for slot in closing:
            self._index.close(slot.bit)
            slot.cache_state = CacheState.STALE
            self._release_bit(slot)

    def _release_bit(self, slot: Slot) -> None:
        """A closed slot's bit is free again after its last request."""
        if self._slots.get(slot.bit) is slot and slot not in slot.worker.slots and not slot.load.active_requests:
            del self._slots[slot.bit]
            self._loads.release(slot.bit)

    def request_ended(self, slot: Slot) -> None:
        """Maybe it was the last one that a closed slot or a drained worker had."""
        if not slot.load.active_requests:
            self._release_bit(slot)
            self._forget_if_drained(slot.worker)

    # Choosing from

    def lineup(self, model: str | None, tried: Collection[str] = ()) -> Lineup:
        """The slots that may serve `model` now, without those of the workers `tried`.

        Raises ModelNotFound (no worker serves it), or Unavailable (none that could is up, or all were tried).
        """
        if tried:
            return Lineup.of(self._eligible(model, tried), model)
        if model not in self._lineups:
            self._lineups[model] = Lineup.of(self._eligible(model, ()), model)
        return self._lineups[model]

    def _eligible(self, model: str | None, tried: Collection[str]) -> list[Slot]:
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
        load = self._loads.at(np.array([slot.bit]), now)
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
            active_requests=int(load.active_requests[0]),
            queued_prefill_tokens=float(load.queued_prefill_tokens[0]),
            decode_tokens=int(load.decode_tokens[0]),
            prefill_tokens_per_s=float(load.prefill_tokens_per_s[0]),
        )
