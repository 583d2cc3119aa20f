"""What a slot has to do: the requests placed there, the prefill they still wait for, and how fast it prefills."""

from dataclasses import dataclass
from math import exp

RATE_MEMORY = 0.9
"""Each first token ages what was learned of the prefill rate by this: about the last ten decide."""

DECODE_MEMORY_S = 20.0
"""The mean of decode tokens forgets by this time constant: some answers long, and short beside a conversation."""


@dataclass(slots=True)
class _Request:
    prompt_tokens: int
    placed_at: float
    work_ahead: float  # prefill tokens that had to be done before its first token, its own included


class PrefillRate:
    """Prefill tokens/s of a slot, learned from first tokens; `prior` counts as one second of observation.

    Sums of tokens and of seconds are aged, not their ratios, so that short prompts, whose time is mostly overhead,
    weigh little.
    """

    def __init__(self, prior_tokens_per_s: float) -> None:
        self._tokens, self._seconds = prior_tokens_per_s, 1.0

    @property
    def tokens_per_s(self) -> float:
        return self._tokens / self._seconds

    def observe(self, tokens: float, seconds: float) -> None:
        if tokens > 0 and seconds > 0:
            self._tokens = self._tokens * RATE_MEMORY + tokens
            self._seconds = self._seconds * RATE_MEMORY + seconds


class SlotLoad:
    """The requests in flight on one slot. `reserve` once, `first_token` at most once, `finish` once for each ticket."""

    def __init__(self, prior_prefill_tokens_per_s: float) -> None:
        self.rate = PrefillRate(prior_prefill_tokens_per_s)
        self.decode_tokens = 0
        self._requests: dict[int, _Request] = {}
        self._waiting: set[int] = set()  # tickets without a first token
        self._backlog: dict[int, float] = {}  # ticket -> uncached tokens not yet done, in order of arrival
        self._drained_at = 0.0
        self._mean_decode_tokens, self._mean_at = 0.0, 0.0

    @property
    def active_requests(self) -> int:
        return len(self._requests)

    @property
    def waiting_requests(self) -> int:
        """Those without a first token."""
        return len(self._waiting)

    def reserve(self, ticket: int, prompt_tokens: int, uncached_tokens: int, now: float) -> None:
        ahead = self.queued_prefill_tokens(now) + uncached_tokens
        self._requests[ticket] = _Request(prompt_tokens, now, ahead)
        self._backlog[ticket] = uncached_tokens
        self._waiting.add(ticket)
        self._hold(prompt_tokens, now)

    def first_token(self, ticket: int, now: float) -> None:
        if ticket not in self._waiting:
            return
        request = self._requests[ticket]
        self._answers(ticket, now)
        self.rate.observe(request.work_ahead, now - request.placed_at)

    def finish(self, ticket: int, now: float) -> None:
        self._answers(ticket, now)
        self._hold(-self._requests.pop(ticket).prompt_tokens, now)

    def queued_prefill_tokens(self, now: float) -> float:
        """Uncached tokens whose first token has not come, less what the slot has done by `now` at its rate."""
        self._drain(now)
        return sum(self._backlog.values())

    def mean_decode_tokens(self, now: float) -> float:
        """Of the past up to `now`, over time; older times count less."""
        share = exp((self._mean_at - now) / DECODE_MEMORY_S)
        return self.decode_tokens + (self._mean_decode_tokens - self.decode_tokens) * share

    def _hold(self, tokens: int, now: float) -> None:
        self._mean_decode_tokens, self._mean_at = self.mean_decode_tokens(now), now
        self.decode_tokens += tokens

    def _answers(self, ticket: int, now: float) -> None:
        """Its prefill is over, done or not."""
        self._drain(now)
        self._waiting.discard(ticket)
        self._backlog.pop(ticket, None)

    def _drain(self, now: float) -> None:
        budget = (now - self._drained_at) * self.rate.tokens_per_s
        self._drained_at = now
        while self._backlog and budget > 0:
            oldest = next(iter(self._backlog))
            left = self._backlog[oldest] - budget
            budget = -left
            if left > 0:
                self._backlog[oldest] = left
            else:
                del self._backlog[oldest]
