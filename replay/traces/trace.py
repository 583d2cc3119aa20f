"""What a trace is, whatever file it came from."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Chat:
    """A prompt that the engine's chat template makes into text. The fields are those of OpenAI's API."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()


Prompt: TypeAlias = str | tuple[int, ...] | Chat
"""A text, token ids, or a chat."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request, in what every format can say of it.

    `hash_ids` names the prompt's blocks of `Trace.block_tokens` tokens, the last one partial. A name stands for the
    whole prefix that ends with its block, so two prompts share exactly the blocks that they have names in common for;
    blocks that the file says nothing about have names of their own.

    `arrival_s` counts from the trace's first arrival. It is None where the file has no time for this request: then it
    comes `delay_s` after the answer to its session's previous turn, or, as a first turn, when the replay likes. Both
    are set where the file tells both: the first for an open loop, the second for a closed one.
    """

    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]
    prompt: Prompt | None = None
    """What to send, where the file has it; None where it has only hashes or lengths."""
    arrival_s: float | None = None
    session: str | None = None
    turn: int = 0
    delay_s: float | None = None
    """From the end of the previous turn's answer to this request; None where the file does not say."""

    def __post_init__(self) -> None:
        assert self.input_tokens > 0, "an engine takes no empty prompt"


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their arrival, or of the file where some have none."""

    format: str
    requests: tuple[TraceRequest, ...]
    block_tokens: int
    has_prefixes: bool
    """False: the file has only lengths. No prompt shares a block, and no hit ratio of it means anything."""

    def __post_init__(self) -> None:
        assert all(len(r.hash_ids) == ceil(r.input_tokens / self.block_tokens) for r in self.requests)

    @cached_property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return max((r.arrival_s for r in self.requests if r.arrival_s is not None), default=0.0)

    @cached_property
    def input_tokens(self) -> int:
        return sum(request.input_tokens for request in self.requests)

    @cached_property
    def output_tokens(self) -> int:
        return sum(request.output_tokens for request in self.requests)
