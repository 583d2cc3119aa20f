"""What a policy sees: one request and a snapshot of the workers that could serve it.

All of it is computed before the policy runs; docs/policies.md tells how. Fields with a default have one that means
"not known", and policies then do without.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple, Protocol

SHARE_WINDOW = 1000
"""Requests that a prefix's share is taken over."""


class PrefixShare(NamedTuple):
    """A prefix of the prompt, and how popular it is of late."""

    key: int
    """Its hash, unsigned 64-bit, adapter and cache salt included: equal for equal prefixes only."""
    tokens: int
    share: float
    """x: how many of the last SHARE_WINDOW requests, this one included, began with it, over SHARE_WINDOW."""


class RequestView(NamedTuple):
    """A request to place. Keys are unsigned 64-bit hashes."""

    prompt_tokens: int
    """L: exact where the router tokenizes, else estimated from the body."""
    head_key: int | None = None
    """Of the prompt's first 256 tokens (or all of a shorter one) and the adapter."""
    session_key: int | None = None
    """Of the name that the client gives its session: a header, or the body's `user`."""
    follow_up: bool | None = None
    """Whether the prompt continues a conversation, that is, holds an earlier answer."""
    prefixes: tuple[PrefixShare, ...] = ()
    """Of 1, 2, 4, 8, ... whole blocks, as far as the prompt has them."""
    draw: int = 0
    """64 random bits, drawn for this request by the caller's seeded generator."""


class Candidate(NamedTuple):
    """One place that could serve the request: a worker, or one data-parallel rank of it.

    (A tuple, for every decision makes one for each place, and a frozen dataclass takes three times as long.)
    """

    key: str
    cached_tokens: int
    """h: prefix of this prompt in the place's cache, what is predicted of prompts in flight included; whole blocks,
    fewer than L."""
    queued_prefill_tokens: float
    """Q: uncached prompt tokens sent there without a first token yet, less what its prefill rate did since."""
    active_requests: int
    """n: requests placed there and not finished."""
    decode_tokens: int
    """d: KV tokens that those requests hold, which every decode step reads."""
    mean_decode_tokens: float
    """d of late: its mean, in which what was some twenty seconds ago counts a third."""
    waiting_requests: int
    """w: those of the n that have no first token yet."""
    last_placed: int
    """The number of the last request placed there, counting from 1; 0: none yet."""
    prefill_tokens_per_s: float = inf
    """R > 0: how fast it prefills."""
    tree_tokens: int = 0
    """KV tokens that its cache is known to hold, of all prompts."""

    @property
    def wait_s(self) -> float:
        """Q / R: seconds until the prefill that waits there is done."""
        return self.queued_prefill_tokens / self.prefill_tokens_per_s

    def uncached_tokens(self, request: RequestView) -> int:
        """u = L - h: prompt tokens that would have to be computed there."""
        return request.prompt_tokens - self.cached_tokens

    def prefill_work(self, request: RequestView) -> float:
        """Q + u: tokens to prefill there until the request has its first token."""
        return self.queued_prefill_tokens + self.uncached_tokens(request)


class Policy(Protocol):
    def __call__(self, request: RequestView, candidates: Sequence[Candidate], /) -> Sequence[float]:
        """The cost of each candidate, in the candidates' order; infinity: the request may not go there.

        Only the order of costs has to mean something. The order in which the candidates come must not.
        """
        ...
