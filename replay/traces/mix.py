"""A fleet's day in small: tenants with prompts of their own, people who chat, agents who call tools and fan out."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from math import ceil
from random import Random
from typing import TypeAlias

from replay.traces.generate import BLOCK_TOKENS, PLACE, generated
from replay.traces.row import Row
from replay.traces.trace import Trace

Span: TypeAlias = tuple[int, int]
"""A whole number drawn evenly, both ends included."""


@dataclass(frozen=True, slots=True)
class Mix:
    """Sessions come by a Poisson process, each to a tenant, the k-th most popular in proportion to 1/k**tenant_skew.

    A prompt is the tenant's system prompt and all that its session said so far. People's sessions add what they type
    after a pause; agents' sessions add what their tools returned. Halfway through, an agent starts subagents: sessions
    of their own, all from its context so far, and it goes on when the last of them is done.

    Pauses are exponential. For the arrivals of an open loop each answer is taken to last `token_s` a token.
    """

    sessions: int = 400
    sessions_per_s: float = 0.5
    tenants: int = 8
    tenant_skew: float = 1.0
    agent_share: float = 0.3
    system_tokens: Span = (500, 6000)
    turns: Span = (1, 10)
    typed_tokens: Span = (20, 400)
    typing_s: float = 20.0
    tool_tokens: Span = (100, 2000)
    tool_s: float = 2.0
    subagents: Span = (2, 6)
    subagent_turns: Span = (2, 6)
    answer_tokens: Span = (50, 600)
    token_s: float = 0.02


def generate_mix(mix: Mix, seed: int = 0) -> Trace:
    """A trace without texts, with the arrivals of an open loop and the delays of a closed one."""
    return generated("mix", _Fleet(mix, seed).rows())


@dataclass(frozen=True, slots=True)
class _Context:
    """The tokens of a session so far, as hashes of its blocks, the last one partial."""

    blocks: tuple[int, ...] = ()
    tokens: int = 0

    def extended(self, tokens: int, hashes: Iterator[int]) -> "_Context":
        """With new tokens at its end. A partial block's hash says nothing of the block that it becomes."""
        full = self.blocks[: self.tokens // BLOCK_TOKENS]
        total = self.tokens + tokens
        return _Context((*full, *islice(hashes, ceil(total / BLOCK_TOKENS) - len(full))), total)


@dataclass(slots=True)
class _Session:
    name: str
    context: _Context
    next_s: float  # the arrival of its next turn


class _Fleet:
    def __init__(self, mix: Mix, seed: int) -> None:
        self._mix, self._rng = mix, Random(seed)
        self._hashes = count()

    def rows(self) -> Iterator[Row]:
        mix, rng = self._mix, self._rng
        systems = [_Context().extended(rng.randint(*mix.system_tokens), self._hashes) for _ in range(mix.tenants)]
        popularity = [rank**-mix.tenant_skew for rank in range(1, mix.tenants + 1)]
        starts_s = 0.0
        for number in range(mix.sessions):
            starts_s += rng.expovariate(mix.sessions_per_s)
            [system] = rng.choices(systems, popularity)
            session = _Session(str(number), system, starts_s)
            yield from self._agent(session) if rng.random() < mix.agent_share else self._person(session)

    def _person(self, session: _Session) -> Iterator[Row]:
        mix = self._mix
        return self._turns(session, self._rng.randint(*mix.turns), mix.typed_tokens, mix.typing_s)

    def _agent(self, session: _Session) -> Iterator[Row]:
        mix, rng = self._mix, self._rng
        turns = rng.randint(*mix.turns)
        before = ceil(turns / 2)
        yield from self._turns(session, before, mix.tool_tokens, mix.tool_s)
        subagents = [
            _Session(f"{session.name}/{number}", session.context, session.next_s)
            for number in range(rng.randint(*mix.subagents))
        ]
        for subagent in subagents:
            yield from self._turns(subagent, rng.randint(*mix.subagent_turns), mix.tool_tokens, mix.tool_s)
        session.next_s = max([session.next_s, *(subagent.next_s for subagent in subagents)])
        yield from self._turns(session, turns - before, mix.tool_tokens, mix.tool_s)

    def _turns(self, session: _Session, turns: int, added_tokens: Span, pause_s: float) -> Iterator[Row]:
        for _ in range(turns):
            prompt = session.context.extended(self._rng.randint(*added_tokens), self._hashes)
            answer_tokens = self._rng.randint(*self._mix.answer_tokens)
            answer_s = answer_tokens * self._mix.token_s
            yield Row(
                PLACE,
                input_tokens=prompt.tokens,
                output_tokens=answer_tokens,
                hashes=prompt.blocks,
                arrival_s=session.next_s,
                duration_s=answer_s,
                session=session.name,
            )
            session.context = prompt.extended(answer_tokens, self._hashes)
            session.next_s += answer_s + self._rng.expovariate(1 / pause_s)
