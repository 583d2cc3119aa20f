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
from typing import NamedTuple

import numpy as np

from kv_events.deliveries import Batch, Delivery, Lost, Reset, Synced
from kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch
from kv_events.hashing import block_hashes
from policies.choice import NoneSuitable, choose
from policies.views import Candidates, Column, Policy, PrefixShare, RequestView
from protocol.errors import Overloaded
from protocol.prompt_tokens import PromptTokens
from protocol.sse import Usage
from router.fleet import RETRY_AFTER_S, Fleet, Health, Lineup, Slot
from router.index import Edge, PrefixIndex, ones_at
from router.load import LoadTable
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

COMPUTED = frozenset({Outcome.OK, Outcome.CLIENT_GONE})
"""With one of these, and a first token, a prompt has been computed by a worker that is still there."""


class _Prompt(NamedTuple):
    """One of a request's prompts, as one block size sees it. The masks: which slots have that, and whom to believe."""

    block_size: int
    slots: int
    trusted: int
    root: int
    hashes: list[int]  # of every full block
    matchable: int  # how many of them can be hits: the last token is always computed


@dataclass(slots=True)
class _Placed:
    """A request that was placed: in flight until it has a `finish`, and a line of the decision log."""

    slot: Slot
    decision: Decision
    leased: list[_Prompt]  # whose blocks are counted in the index until the request ends
    kept_blocks: int | None  # then kept, up to so many of the slot; None: an engine announces them
    first_token_at: float | None = None
    finish: Finish | None = None


def _hash_prompts(request: RouteRequest, lineup: Lineup) -> list[_Prompt]:
    """For each block size of the slots that could take them, the smallest first, all prompts."""
    naming = lineup.tokens if request.unknown_prompt is None else lineup.texts
    root = naming.root_for(request.cache_salt)
    return [
        _Prompt(size, slots, naming.trusted, root, _hashes(tokens, size, root), max(0, len(tokens) - 1) // size)
        for size, slots in naming.by_block_size
        for tokens in request.prompts
    ]


def _hashes(tokens: PromptTokens | Sequence[int], block_size: int, root: int) -> list[int]:
    if isinstance(tokens, PromptTokens):
        return tokens.block_hashes(block_size, root, block_hashes)
    return block_hashes(tokens, block_size, root)


class RouterCore:
    """See the module's docstring. `max_in_flight` bounds tickets, `max_decisions` the decision log,
    `max_index_bytes` the index, `assumed_cache_tokens` what a slot is taken to keep where no engine tells; `loads` is
    given where several processes share one."""

    def __init__(
        self,
        policy: Policy,
        rng: Random,
        *,
        policy_name: str,
        max_in_flight: int,
        max_decisions: int,
        prior_prefill_tokens_per_s: float,
        max_index_bytes: int,
        assumed_cache_tokens: int,
        loads: LoadTable | None = None,
    ) -> None:
        self._policy, self._policy_name, self._rng = policy, policy_name, rng
        self._max_in_flight, self._assumed_cache_tokens = max_in_flight, assumed_cache_tokens
        self._index = PrefixIndex(max_bytes=max_index_bytes)
        self._loads = LoadTable() if loads is None else loads
        self._fleet = Fleet(self._index, self._loads, prior_prefill_tokens_per_s=prior_prefill_tokens_per_s)
        self._prefix_shares = PrefixShares()
        self._in_flight: dict[int, _Placed] = {}  # by ticket
        self._placed = 0
        self._log: deque[_Placed] = deque(maxlen=max_decisions)

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
        block_size = slot.block_size
        if isinstance(delivery, Batch):
            block_size = self._apply(slot, delivery.batch) or block_size
        elif isinstance(delivery, Reset):
            self._fleet.drop_cache(slot)
        self._fleet.learn(slot, CACHE_STATE_AFTER.get(type(delivery), slot.cache_state), block_size)

    def _apply(self, slot: Slot, batch: EventBatch) -> int | None:
        """Returns the block size that the events name, if they do."""
        block_size = None
        for event in batch.events:
            if isinstance(event, BlockStored):
                block_size = event.block_size
                self._index.store(slot.bit, event)
            elif isinstance(event, BlockRemoved):
                self._index.remove(slot.bit, event)
            elif isinstance(event, AllBlocksCleared):
                self._index.clear(slot.bit)
        slot.load.holds(self._index.held_blocks(slot.bit) * (block_size or slot.block_size or 0))
        return block_size

    # Requests

    def route(self, request: RouteRequest, now: float, *, tried: Collection[str] = ()) -> Placement:
        """Decide and reserve. `tried` names workers that failed this request.

        Raises ModelNotFound, Unavailable or Overloaded, all with nothing reserved.
        """
        if len(self._in_flight) >= self._max_in_flight:
            message = f"{self._max_in_flight} requests are in flight, the most this process takes"
            raise Overloaded(message, retry_after_s=RETRY_AFTER_S)
        lineup = self._fleet.lineup(request.model, tried)
        prompts = _hash_prompts(request, lineup)
        position, decision = self._decide(request, lineup, prompts, now, self._rng)
        return self._reserve(lineup.slots[position], decision, prompts, now)

    def explain(self, request: RouteRequest, now: float) -> Decision:
        """What `route` would decide now. Changes nothing, the random generator included."""
        rng = Random()
        rng.setstate(self._rng.getstate())
        lineup = self._fleet.lineup(request.model)
        return self._decide(request, lineup, _hash_prompts(request, lineup), now, rng)[1]

    def on_first_token(self, ticket: int, now: float) -> None:
        found = self._in_flight[ticket]
        found.first_token_at = now
        found.slot.load.first_token(ticket, now)

    def on_finish(self, ticket: int, outcome: Outcome, now: float, usage: Usage | None = None) -> None:
        """The end of a ticket, on every path. A second one for the same ticket is a bug and raises KeyError."""
        ended = self._in_flight.pop(ticket)
        ended.slot.load.finish(ticket, now)
        self._end_leases(ended, computed=ended.first_token_at is not None and outcome in COMPUTED)
        ttft_s = None if ended.first_token_at is None else ended.first_token_at - ended.decision.at_s
        ended.finish = Finish(outcome, now, ttft_s, usage)
        self._fleet.request_ended(ended.slot)

    def _end_leases(self, ended: _Placed, *, computed: bool) -> None:
        bit = ended.slot.bit
        for prompt in ended.leased:
            if computed and ended.kept_blocks is not None:
                self._index.keep_lease(bit, prompt.hashes, ended.kept_blocks)
            else:
                self._index.end_lease(bit, prompt.hashes)
        ended.leased = []

    def _decide(
        self, request: RouteRequest, lineup: Lineup, prompts: list[_Prompt], now: float, rng: Random
    ) -> tuple[int, Decision]:
        """The chosen slot's position in `lineup`, and why."""
        cached_tokens = self._cached_tokens(lineup, prompts)
        candidates = Candidates(lineup.names, cached_tokens, *self._loads.at(lineup.bits, now))
        try:
            choice = choose(self._policy, self._view(request, prompts, rng), candidates, rng)
        except NoneSuitable as refusal:
            raise Overloaded(str(refusal), retry_after_s=RETRY_AFTER_S) from refusal
        decision = Decision(
            request_id=request.request_id,
            at_s=now,
            model=request.model,
            policy=self._policy_name,
            prompt_tokens=request.prompt_tokens,
            candidates=candidates,
            cache_states=lineup.cache_states,
            costs=choice.costs,
            slot=lineup.names[choice.position],
            predicted_cached_tokens=int(cached_tokens[choice.position]),
            unknown_prompt=request.unknown_prompt,
        )
        return choice.position, decision

    def _view(self, request: RouteRequest, prompts: list[_Prompt], rng: Random) -> RequestView:
        """Of several prompts, the first one speaks for the request; of several block sizes, the smallest."""
        head: int | None = None
        prefixes: Sequence[PrefixShare] = ()
        if prompts:
            first = prompts[0]
            head = head_key(request.prompts[0], first.hashes, first.block_size, first.root)
            prefixes = self._prefix_shares.of(first.hashes, first.block_size)
        return RequestView(
            request.prompt_tokens,
            head_key=head,
            session_key=session_key(request.session) if request.session else None,
            follow_up=request.follow_up,
            prefixes=prefixes,
            draw=rng.getrandbits(64),
        )

    def _cached_tokens(self, lineup: Lineup, prompts: list[_Prompt]) -> Column:
        """Prompt tokens that each slot has cached or will have by the time the request gets there."""
        cached = np.zeros(lineup.width)  # by bit
        for prompt in prompts:
            ends = self._index.match(prompt.hashes, prompt.matchable, prompt.slots, prompt.trusted)
            for depth, mask in ends:
                tokens = depth * prompt.block_size
                if tokens and mask & (mask - 1) == 0:  # one slot: a worker with a conversation of its own
                    cached[mask.bit_length() - 1] += tokens
                elif tokens:
                    cached += ones_at(mask, lineup.width) * tokens
        return cached[lineup.bits]

    def _reserve(self, slot: Slot, decision: Decision, prompts: list[_Prompt], now: float) -> Placement:
        self._placed += 1
        ticket = self._placed
        mine = [prompt for prompt in prompts if prompt.slots >> slot.bit & 1]
        for prompt in mine:
            self._index.lease(slot.bit, prompt.hashes)
        silent = decision.unknown_prompt is not None or slot.cache_state is CacheState.UNKNOWN
        kept_blocks = self._assumed_cache_tokens // mine[0].block_size if mine and silent else None
        if prompts:
            self._prefix_shares.add(prompts[0].hashes)
        uncached_tokens = decision.prompt_tokens - decision.predicted_cached_tokens
        slot.load.reserve(ticket, decision.prompt_tokens, uncached_tokens, now)
        self._in_flight[ticket] = placed = _Placed(slot, decision, mine, kept_blocks)
        self._log.append(placed)
        worker = slot.worker
        rank = slot.rank if len(worker.slots) > 1 else None
        return Placement(ticket, worker.id, worker.url, rank, decision)

    # What people and metrics look at

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

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
        return [(placed.decision, placed.finish) for placed in islice(reversed(self._log), last)]

    def check(self) -> None:
        """Raise AssertionError unless load, leases and tickets agree; for tests and idle moments."""
        self._index.check()
        slots = [slot for worker in self._fleet for slot in worker.slots]
        for slot in slots:
            mine = [placed for placed in self._in_flight.values() if placed.slot is slot]
            assert slot.load.active_requests == len(mine)
            assert slot.load.decode_tokens == sum(placed.decision.prompt_tokens for placed in mine)
        if not self._in_flight:
            assert self._index.leased_blocks <= self._index.assumed_blocks
