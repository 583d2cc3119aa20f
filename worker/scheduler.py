"""Continuous batching: which sequences compute how many tokens in the next step.

Running sequences come first, in order of admission, then waiting ones in order of arrival, within `max_batched_tokens`
and `max_num_seqs`. A prompt longer than what is left of the budget is computed in chunks over several steps. A waiting
sequence is admitted when the pool has blocks for all its tokens that are not cached; the first that does not fit ends
admission, so nobody is overtaken. When a running sequence needs a block and none is free, the newest running one is
preempted: it gives up its blocks, returns to the head of the waiting queue and is computed again later.

Between two admissions most steps only decode, each like the one before but for a token a sequence. `steady_steps` says
how many such steps follow, `advance` does several of them at once.

The oldest running sequence is never preempted for another, and every sequence fits an empty pool: so each step makes
progress and every request ends.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kv_events.hashing import cache_digests
from worker.block_manager import BlockManager
from worker.plan import Draw, ScheduledSequence, StepPlan
from worker.request import EngineRequest
from worker.token_chain import BlockDigests, TokenChain


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way: its tokens so far, its blocks, and how many of its tokens have their K/V in them."""

    request: EngineRequest
    chain: TokenChain
    block_table: list[int] = field(default_factory=list)
    computed: int = 0
    cached_tokens: int | None = None  # of the prompt, at its first admission; None: not admitted yet
    prompt_tokens: int = field(init=False)
    most_tokens: int = field(init=False)  # of prompt and answer

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.request.prompt_token_ids)
        self.most_tokens = self.prompt_tokens + self.request.sampling.max_tokens

    @property
    def pending(self) -> int:
        return len(self.chain.token_ids) - self.computed

    @property
    def decoding(self) -> bool:
        """Its next step computes nothing but its newest token."""
        return self.prompt_tokens <= self.computed == len(self.chain.token_ids) - 1

    @property
    def generated(self) -> int:
        return len(self.chain.token_ids) - self.prompt_tokens

    @property
    def left(self) -> int:
        """Tokens that it may still generate."""
        return self.most_tokens - len(self.chain.token_ids)


class Scheduler:
    """Owns the sequences from `add` to `remove`; each must fit the pool with all that it may generate.

    The waiting queue is as long as what is added: bounding it is the part of whoever talks to clients. `digest_blocks`
    names blocks: anything weaker than the default may mix up the caches of two prompts.
    """

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_batched_tokens: int,
        max_num_seqs: int,
        digest_blocks: BlockDigests = cache_digests,
    ) -> None:
        if max_num_seqs < 1 or max_batched_tokens < max_num_seqs:
            raise ValueError(
                f"a step of {max_batched_tokens} tokens cannot serve {max_num_seqs} sequences: "
                "max_batched_tokens must be at least max_num_seqs, and that at least 1"
            )
        self.blocks = blocks
        self.preemptions = 0
        self.queried_tokens = 0  # prompt tokens that could have been cached: all but the last of each prompt
        self.hit_tokens = 0
        self.computed_tokens = 0
        self._max_batched_tokens = max_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._digest_blocks = digest_blocks
        self._sequences: dict[str, Sequence] = {}
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._refused = False  # the first of the waiting had no room, and none came free since

    def __repr__(self) -> str:
        return f"<Scheduler {self.num_running} running, {self.num_waiting} waiting, {self.blocks!r}>"

    @property
    def running(self) -> list[Sequence]:
        """The running sequences, in order of admission."""
        return self._running.copy()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: EngineRequest) -> None:
        """Put a request at the end of the waiting queue. Raises ValueError if its id is in use."""
        if request.request_id in self._sequences:
            raise ValueError(f"request id {request.request_id!r} is in use")
        chain = TokenChain(
            request.prompt_token_ids,
            self.blocks.block_size,
            adapter=request.adapter,
            salt=request.cache_salt,
            digest_blocks=self._digest_blocks,
        )
        sequence = Sequence(request, chain)
        self._sequences[request.request_id] = sequence
        self._waiting.append(sequence)

    def get(self, request_id: str) -> Sequence | None:
        return self._sequences.get(request_id)

    def remove(self, request_id: str) -> None:
        """A sequence has ended, running or waiting: its blocks become free, what they hold stays cached."""
        sequence = self._sequences.pop(request_id)
        self._refused = False
        if sequence.block_table:
            self._running.remove(sequence)
            self.blocks.release(sequence.block_table)
        else:
            self._waiting.remove(sequence)

    def schedule(self) -> StepPlan:
        """Decide the next step. The tokens in it count as computed from here on, and the blocks they fill as cached."""
        preemptions = self.preemptions
        scheduled = self._continue_running(self._max_batched_tokens)
        if self.preemptions == preemptions:  # else the pool is short, and who was preempted would come straight back
            budget = self._max_batched_tokens - sum(len(sequence.token_ids) for sequence in scheduled)
            scheduled += self._start_waiting(budget)
        return StepPlan(tuple(scheduled))

    def steady_steps(self) -> int:
        """For how many steps from now the running sequences, and only they, decode one token each if none ends.

        0: the next step may be another. At most as many as the pool surely has blocks for.
        """
        may_admit = self._waiting and not self._refused and len(self._running) < self._max_num_seqs
        if may_admit or not self._running:
            return 0
        if not all(sequence.decoding for sequence in reversed(self._running)):  # the newest is the likeliest not to
            return 0
        return self.blocks.free_blocks // len(self._running) * self.blocks.block_size

    def advance(self, steps: int, draw: Callable[[EngineRequest], int]) -> None:
        """What `steps` steps would do in which each running sequence draws `draw` of its request every time.

        At most `steady_steps()`. The events are those of all steps, in another order.
        """
        for sequence in self._running:
            sequence.chain.append(draw(sequence.request), steps)
            grown = self._grow(sequence, sequence.computed + steps)
            assert grown, "more steps than the pool has blocks for"
            self._compute(sequence, steps)

    def check(self) -> None:
        """Assert the invariants of the queues and of the blocks."""
        assert len(self._running) <= self._max_num_seqs, "more sequences run than may"
        assert {*self._running, *self._waiting} == {*self._sequences.values()}, "a sequence is lost"
        assert not any(sequence.block_table or sequence.computed for sequence in self._waiting), (
            "a waiting one holds blocks"
        )
        for sequence in self._running:
            held = len(sequence.block_table) * self.blocks.block_size
            assert sequence.computed <= held, f"{sequence.request.request_id}: computed beyond its blocks"
        self.blocks.check(sequence.block_table for sequence in self._running)

    def _continue_running(self, budget: int) -> list[ScheduledSequence]:
        scheduled = []
        for sequence in self._running:  # preemption takes from the end of this list, never what was passed
            if not budget:
                break
            if self._grow(sequence, len(sequence.chain.token_ids)):
                scheduled.append(self._take(sequence, budget))
                budget -= len(scheduled[-1].token_ids)
        return scheduled

    def _start_waiting(self, budget: int) -> list[ScheduledSequence]:
        scheduled = []
        while budget and self._waiting and not self._refused and len(self._running) < self._max_num_seqs:
            sequence = self._waiting[0]
            if not self._admit(sequence):
                self._refused = True
                break
            scheduled.append(self._take(sequence, budget))
            budget -= len(scheduled[-1].token_ids)
        return scheduled

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        """Blocks for so many tokens, at the cost of newer sequences; False if this one had to be preempted itself."""
        missing = self.blocks.blocks_for(tokens) - len(sequence.block_table)
        if missing <= 0:
            return True
        while (fresh := self.blocks.acquire((), missing)) is None:
            newest = self._running[-1]
            self._preempt(newest)
            if newest is sequence:
                return False
        sequence.block_table += fresh
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._waiting.appendleft(sequence)
        self.blocks.release(sequence.block_table)
        sequence.block_table = []
        sequence.computed = 0
        self.preemptions += 1
        self._refused = False

    def _admit(self, sequence: Sequence) -> bool:
        """Start or resume the first of the waiting behind its cached prefix; False if the rest has no room."""
        cached = self.blocks.find_cached(sequence.chain)
        table = self.blocks.acquire(cached, self.blocks.blocks_for(len(sequence.chain)) - len(cached))
        if table is None:
            return False
        self._waiting.popleft()
        self._running.append(sequence)
        sequence.block_table = table
        sequence.computed = len(cached) * self.blocks.block_size
        if sequence.cached_tokens is None:
            sequence.cached_tokens = sequence.computed
            self.queried_tokens += len(sequence.chain) - 1
            self.hit_tokens += sequence.computed
        return True

    def _take(self, sequence: Sequence, budget: int) -> ScheduledSequence:
        """Schedule as many of the sequence's pending tokens as the budget allows."""
        start = sequence.computed
        self._compute(sequence, min(sequence.pending, budget))
        return ScheduledSequence(
            request_id=sequence.request.request_id,
            token_ids=sequence.chain.token_ids[start : sequence.computed],
            start=start,
            block_table=tuple(sequence.block_table),
            draw=None if sequence.pending else Draw(sequence.request.sampling, sequence.generated),
        )

    def _compute(self, sequence: Sequence, tokens: int) -> None:
        """Count the sequence's next `tokens` as computed, and the blocks that they fill as cached."""
        block_size = self.blocks.block_size
        first = sequence.computed // block_size
        sequence.computed += tokens
        self.computed_tokens += tokens
        self.blocks.register(sequence.chain, sequence.block_table, first, sequence.computed // block_size)
