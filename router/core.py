"""The router's core: a state machine without I/O. Time is an argument, randomness a generator that it was given.

It is the only writer of fleet, load and index. Nothing in it awaits, so between reading load and reserving it no other
request can come: concurrent requests see each other's reservations, and no lock is needed.

The shells report what happens:

    add_worker, drain_worker, on_worker_up, on_worker_down      the fleet
    on_kv_events                                                a slot's cache
    route -> on_first_token (at most once) -> on_finish (once)  a request
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from kv_events.deliveries import Batch, Delivery, Lost, Reset, Synced
from kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kv_events.hashing import block_hashes, root_hash
from policies.choice import NoneSuitable, choose
from policies.views import Candidate, Policy, RequestView
from protocol.errors import Overloaded
from protocol.prompt_tokens import PromptTokens
from protocol.sse import Usage
from router.fleet import RETRY_AFTER_S, Fleet, Health, Slot
from router.index import Edge, PrefixIndex
from router.records import (
    CacheState,
    Decision,
    Finish,
    ModelCard,
    Outcome,
    Placement,
    RouteRequest,
    WorkerInfo,
    WorkerReport,
)
from router.request_view import PrefixShares, head_key, session_key

CACHE_STATE_AFTER: dict[type[Delivery], CacheState] = {
    Reset: CacheState.SYNCING,
    Synced: CacheState.LIVE,
    Lost: CacheState.STALE,
}


@dataclass(slots=True)
class _Ticket:
    slot: Slot
    leased: list[list[int]]  # block hashes of each prompt, counted in the index until the request ends
    record: "_Record"
    placed_at: float
    first_token_at: float | None = None


@dataclass(slots=True)
class _Record:
    """A line of the decision log; `finish` is None while the request runs."""

    decision: Decision
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A request's prompts as one block size sees them."""

    block_size: int
    head_key: int
    hashes: list[list[int]]  # of every full block
    matchable: list[int]  # how many of them can be hits: the last token is always computed


def _hashes(tokens: PromptTokens | Sequence[int], block_size: int, root: int) -> list[int]:
    if isinstance(tokens, PromptTokens):
        return tokens.block_hashes(block_size, root, block_hashes)
    return block_hashes(tokens, block_size, root)


class RouterCore:
    """See the module's docstring. `max_in_flight` bounds tickets, `max_decisions` the decision log,
    `max_index_bytes` the index."""

    def __init__(
        self,
        policy: Policy,
        rng: Random,
        *,
        policy_name: str,
        max_in_flight: int,
        max_decisions: int,
        prior_prefill_tokens_per_s: float,
        max_index_bytes: int = 4 << 30,
    ) -> None:
        self._policy, self._policy_name, self._rng = policy, policy_name, rng
        self._max_in_flight = max_in_flight
        self._index = PrefixIndex(max_bytes=max_index_bytes)
        self._fleet = Fleet(self._index, prior_prefill_tokens_per_s=prior_prefill_tokens_per_s)
        self._prefix_shares = PrefixShares()
        self._tickets: dict[int, _Ticket] = {}
        self._placed = 0
        self._log: deque[_Record] = deque(maxlen=max_decisions)

    # The fleet

    def add_worker(self, url: str) -> str:
        """The new worker's id. Raises InvalidRequest (bad URL) or Conflict (known)."""
        return self._fleet.add(url).id

    def drain_worker(self, worker: str) -> int:
        """Place nothing more on `worker` and forget it after its last request; returns how many are left."""
        found = self._fleet[worker]
        self._fleet.drain(found)
        return found.in_flight

    def has_worker(self, worker: str) -> bool:
        return worker in self._fleet

    def on_worker_up(self, worker: str, info: WorkerInfo) -> None:
        """`worker` answers, and discovery learned `info`. Of a worker that left meanwhile: nothing happens."""
        if worker in self._fleet:
            self._fleet.up(self._fleet[worker], info)

    def on_worker_down(self, worker: str, reason: str) -> None:
        if worker in self._fleet:
            self._fleet.down(self._fleet[worker], reason)

    def on_kv_events(self, worker: str, rank: int, delivery: Delivery) -> None:
        """News of a rank's cache. Of a worker or rank that is not here (any more): nothing happens."""
        slot = self._fleet.slot(worker, rank)
        if slot is None or slot.worker.health is not Health.UP:
            return
        if isinstance(delivery, Batch):
            self._apply(slot, delivery.batch)
        elif isinstance(delivery, Reset):
            self._fleet.drop_cache(slot)
        slot.cache_state = CACHE_STATE_AFTER.get(type(delivery), slot.cache_state)

    def _apply(self, slot: Slot, batch: EventBatch) -> None:
        for event in batch.events:
            if isinstance(event, BlockStored):
                slot.block_size = event.block_size
                self._index.store(slot.bit, event)
            elif isinstance(event, BlockRemoved):
                self._index.remove(slot.bit, event)
            elif isinstance(event, AllBlocksCleared):
                self._index.clear(slot.bit)

    # Requests

    def route(self, request: RouteRequest, now: float, *, tried: Collection[str] = ()) -> Placement:
        """Decide and reserve. `tried` names workers that failed this request.

        Raises ModelNotFound, Unavailable or Overloaded, all with nothing reserved.
        """
        if len(self._tickets) >= self._max_in_flight:
            message = f"{self._max_in_flight} requests are in flight, the most this router takes"
            raise Overloaded(message, retry_after_s=RETRY_AFTER_S)
        slots = self._fleet.eligible(request.model, tried)
        prompts = self._hash_prompts(request, slots)
        slot, decision = self._decide(request, slots, prompts, now, self._rng)
        return self._reserve(slot, decision, prompts, now)

    def explain(self, request: RouteRequest, now: float) -> Decision:
        """What `route` would decide now. Changes nothing, the random generator included."""
        rng = Random()
        rng.setstate(self._rng.getstate())
        slots = self._fleet.eligible(request.model, ())
        return self._decide(request, slots, self._hash_prompts(request, slots), now, rng)[1]

    def on_first_token(self, ticket: int, now: float) -> None:
        found = self._tickets[ticket]
        found.first_token_at = now
        found.slot.load.first_token(ticket, now)

    def on_finish(self, ticket: int, outcome: Outcome, now: float, usage: Usage | None = None) -> None:
        """The end of a ticket, on every path. A second one for the same ticket is a bug and raises KeyError."""
        ended = self._tickets.pop(ticket)
        slot = ended.slot
        slot.load.finish(ticket, now)
        for hashes in ended.leased:
            self._index.end_lease(slot.bit, hashes)
        ttft_s = None if ended.first_token_at is None else ended.first_token_at - ended.placed_at
        ended.record.finish = Finish(outcome, now, ttft_s, usage)
        self._fleet.release_bit(slot)
        self._fleet.forget_if_drained(slot.worker)

    def _hash_prompts(self, request: RouteRequest, slots: list[Slot]) -> dict[int, _Prompt]:
        """The prompts' block hashes, by block size of the slots that could take them."""
        if not request.prompts:
            return {}
        root = root_hash(self._adapter(request.model, slots), request.cache_salt)
        head = head_key(request.prompts[0], root)
        return {
            size: _Prompt(
                size,
                head,
                [_hashes(tokens, size, root) for tokens in request.prompts],
                [max(0, len(tokens) - 1) // size for tokens in request.prompts],
            )
            for size in {slot.block_size for slot in slots if slot.block_size}
        }

    def _adapter(self, model: str | None, slots: list[Slot]) -> str | None:
        """`model` if it names an adapter: engines then hash its name into every block."""
        infos = (slot.worker.info for slot in slots)
        cards = (card for info in infos if info for card in info.models if card.id == model)
        return model if any(card.parent for card in cards) else None

    def _decide(
        self, request: RouteRequest, slots: list[Slot], prompts: dict[int, _Prompt], now: float, rng: Random
    ) -> tuple[Slot, Decision]:
        cached = self._cached_tokens(slots, prompts)
        candidates = tuple(
            Candidate(
                key=slot.id,
                cached_tokens=cached[slot.bit],
                queued_prefill_tokens=slot.load.queued_prefill_tokens(now),
                active_requests=slot.load.active_requests,
                decode_tokens=slot.load.decode_tokens,
                mean_decode_tokens=slot.load.mean_decode_tokens(now),
                waiting_requests=slot.load.waiting_requests,
                last_placed=slot.last_placed,
                prefill_tokens_per_s=slot.load.rate.tokens_per_s,
                tree_tokens=self._index.held_blocks(slot.bit) * (slot.block_size or 0),
            )
            for slot in slots
        )
        try:
            choice = choose(self._policy, self._view(request, prompts, rng), candidates, rng)
        except NoneSuitable as refusal:
            raise Overloaded(str(refusal), retry_after_s=RETRY_AFTER_S) from refusal
        slot = slots[choice.position]
        decision = Decision(
            request_id=request.request_id,
            at_s=now,
            model=request.model,
            policy=self._policy_name,
            prompt_tokens=request.prompt_tokens,
            candidates=candidates,
            cache_states=tuple(slot.cache_state for slot in slots),
            costs=choice.costs,
            slot=slot.id,
            predicted_cached_tokens=cached[slot.bit],
            unknown_prompt=request.unknown_prompt,
        )
        return slot, decision

    def _view(self, request: RouteRequest, prompts: dict[int, _Prompt], rng: Random) -> RequestView:
        """Of several prompts, the first one speaks for the request; of several block sizes, the smallest."""
        prompt = prompts[min(prompts)] if prompts else None
        return RequestView(
            request.prompt_tokens,
            head_key=prompt.head_key if prompt else None,
            session_key=session_key(request.session) if request.session else None,
            follow_up=request.follow_up,
            prefixes=self._prefix_shares.of(prompt.hashes[0], prompt.block_size) if prompt else (),
            draw=rng.getrandbits(64),
        )

    def _cached_tokens(self, slots: list[Slot], prompts: dict[int, _Prompt]) -> dict[int, int]:
        """Prompt tokens that each slot (by bit) has cached or will have by the time the request gets there."""
        trusted = self._fleet.trusted()
        cached = {slot.bit: 0 for slot in slots}
        for size, prompt in prompts.items():
            mask = sum(1 << slot.bit for slot in slots if slot.block_size == size)
            for hashes, matchable in zip(prompt.hashes, prompt.matchable, strict=True):
                for bit, depth in self._index.match(hashes[:matchable], mask, trusted).items():
                    cached[bit] += depth * size
        return cached

    def _reserve(self, slot: Slot, decision: Decision, prompts: dict[int, _Prompt], now: float) -> Placement:
        self._placed += 1
        ticket, slot.last_placed = self._placed, self._placed
        leased = prompts[slot.block_size].hashes if slot.block_size in prompts else []
        for hashes in leased:
            self._index.lease(slot.bit, hashes)
        if prompts:
            self._prefix_shares.add(prompts[min(prompts)].hashes[0])
        uncached_tokens = decision.prompt_tokens - decision.predicted_cached_tokens
        slot.load.reserve(ticket, decision.prompt_tokens, uncached_tokens, now)
        record = _Record(decision)
        self._log.append(record)
        self._tickets[ticket] = _Ticket(slot, leased, record, now)
        worker = slot.worker
        rank = slot.rank if len(worker.slots) > 1 else None
        return Placement(ticket, worker.id, worker.url, rank, decision)

    # What people and metrics look at

    @property
    def in_flight(self) -> int:
        return len(self._tickets)

    @property
    def leased_blocks(self) -> int:
        return self._index.leased_blocks

    def workers(self, now: float) -> list[WorkerReport]:
        return [self._fleet.report(worker, now) for worker in self._fleet]

    def worker(self, worker: str, now: float) -> WorkerReport:
        """Raises NotFound, naming the workers that are here."""
        return self._fleet.report(self._fleet[worker], now)

    def models(self) -> list[ModelCard]:
        """What can be asked for: the models of all workers that are up, each once."""
        cards = {card.id: card for w in self._fleet if w.info and w.health is Health.UP for card in w.info.models}
        return list(cards.values())

    def tree(self, worker: str) -> dict[str, list[Edge]]:
        """The prefix trees of a worker by slot id. Raises NotFound."""
        return {slot.id: self._index.tree(slot.bit) for slot in self._fleet[worker].slots}

    def decisions(self, last: int) -> list[tuple[Decision, Finish | None]]:
        """The last decisions, newest first."""
        return [(record.decision, record.finish) for record in islice(reversed(self._log), last)]

    def check(self) -> None:
        """Raise AssertionError unless load, leases and tickets agree; for tests and idle moments."""
        self._index.check()
        slots = [slot for worker in self._fleet for slot in worker.slots]
        for slot in slots:
            mine = [ticket for ticket in self._tickets.values() if ticket.slot is slot]
            assert slot.load.active_requests == len(mine)
            assert slot.load.decode_tokens == sum(ticket.record.decision.prompt_tokens for ticket in mine)
        if not self._tickets:
            assert self._index.leased_blocks == 0
