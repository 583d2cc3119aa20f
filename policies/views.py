"""What a policy sees: one request and a snapshot of the workers that could serve it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request to place. `prompt_tokens` is exact where the router tokenizes, else estimated from the body."""

    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place that could serve the request: a worker, or one data-parallel rank of it."""

    key: str
    cached_tokens: int
    """h: prefix of this prompt in the place's cache, what is predicted of prompts in flight included; whole blocks."""
    queued_prefill_tokens: float
    """Q: uncached prompt tokens sent there without a first token yet, less what its prefill rate did since."""
    active_requests: int
    """n: requests placed there and not finished."""
    decode_tokens: int
    """d: KV tokens that those requests hold, which every decode step reads."""
    last_placed: int
    """The number of the last request placed there, counting from 1; 0: none yet."""


class Policy(Protocol):
    def __call__(self, request: RequestView, candidates: Sequence[Candidate], /) -> Sequence[float]:
        """The cost of each candidate, in the candidates' order; only the order of costs has to mean something."""
        ...
