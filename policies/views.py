"""What a policy sees: one request and a snapshot of the workers that could serve it.

docs/policies.md tells how all of it is known. Fields with a default have one that means "not known", and policies then
do without.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

SHARE_WINDOW = 1000
"""Requests that a prefix's share is taken over."""

Column: TypeAlias = NDArray[np.float64]


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
    """Of the whole blocks in the prompt's first 256 tokens (where there are none, of these tokens) and the adapter."""
    session_key: int | None = None
    """Of the name that the client gives its session: a header, or the body's `user`."""
    follow_up: bool | None = None
    """Whether the prompt continues a conversation, that is, holds an earlier answer."""
    prefixes: Sequence[PrefixShare] = ()
    """Of 1, 2, 4, 8, ... whole blocks, as far as the prompt has them."""
    draw: int = 0
    """64 random bits, drawn for this request by the caller's seeded generator."""


class Candidates(NamedTuple):
    """The places that could serve the request, in columns: a place is a worker, or one data-parallel rank of it.

    Every column has the shape (places,), a row for each of `keys`. A policy must not write to them.
    """

    keys: tuple[str, ...]
    cached_tokens: Column
    """h: prefix of this prompt in the place's cache, what is predicted of prompts in flight included; whole blocks,
    fewer than L."""
    queued_prefill_tokens: Column
    """Q: uncached prompt tokens sent there without a first token yet, less what its prefill rate did since."""
    active_requests: Column
    """n: requests placed there and not finished."""
    decode_tokens: Column
    """d: KV tokens that those requests hold, which every decode step reads."""
    mean_decode_tokens: Column
    """d of late: its mean, in which what was some twenty seconds ago counts a third."""
    waiting_requests: Column
    """w: those of the n that have no first token yet."""
    last_placed: Column
    """The number of the last request placed there, counting from 1; 0: none yet."""
    prefill_tokens_per_s: Column
    """R > 0: how fast it prefills. Infinity: not known."""
    tree_tokens: Column
    """KV tokens that its cache is known to hold, of all prompts. 0: not known."""

    @property
    def wait_s(self) -> Column:
        """Q / R: seconds until the prefill that waits there is done."""
        return self.queued_prefill_tokens / self.prefill_tokens_per_s

    def uncached_tokens(self, request: RequestView) -> Column:
        """u = L - h: prompt tokens that would have to be computed there."""
        return request.prompt_tokens - self.cached_tokens

    def prefill_work(self, request: RequestView) -> Column:
        """Q + u: tokens to prefill there until the request has its first token."""
        return self.queued_prefill_tokens + self.uncached_tokens(request)


class Policy(Protocol):
    def __call__(self, request: RequestView, candidates: Candidates, /) -> Column | Sequence[float]:
        """The cost of each candidate, in the candidates' order; infinity: the request may not go there.

        Only the order of costs has to mean something. The order in which the candidates come must not.
        """
        ...
