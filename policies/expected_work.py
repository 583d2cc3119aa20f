"""The default policy: place a request where serving it means the least work, for itself and for its neighbours."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from policies.parameters import Amount
from policies.views import Candidate, RequestView


@dataclass(frozen=True, slots=True)
class ExpectedWork:
    """cost = Q + u * (w + gamma * n) + kappa * d, in prefill tokens; u = prompt tokens that are not cached there.

    Q is the wait; u * w this request's own prefill (w > 1 also prices the cache space that a second copy takes);
    u * gamma * n what that prefill costs the n requests which decode beside it; kappa * d the decode load already
    there. It contains least-prefill (w only), LMetric's product (OSDI'26: Q + u times n + 1) and NVIDIA Dynamo's sum
    of prefill and decode blocks as cases.

    Shines where prompts share prefixes and workers are loaded unevenly. Does not know how long an answer will be: a
    worker with few long generations looks like one with few short ones.

    The defaults come from a simulator over nine cells (Mooncake conversation at 4, 8, 16 workers and four loads,
    Mooncake arXiv, two agentic traces, a synthetic one); neighbours (w 1 to 2, gamma 0.05 to 0.2, kappa 0.03 to 0.08)
    are within 2 % there. No trace was held out.
    """

    w: Amount = 1.0
    gamma: Amount = 0.1
    kappa: Amount = 0.05

    @classmethod
    def from_profile(
        cls, *, prefill_ms_per_token: float, decode_ms_per_kv_token: float, output_tokens: float, omega: float = 0.1
    ) -> Self:
        """The constants that follow from a worker's measured profile and one preference.

        `omega` is the worth of a millisecond of decoding in milliseconds of TTFT. A prefill of u tokens stops n
        decodes for u * prefill_ms_per_token each, hence gamma = omega. Each KV token read beside it lengthens each of
        this request's `output_tokens` (expected) decode steps by `decode_ms_per_kv_token`, hence kappa = omega *
        output_tokens * decode_ms_per_kv_token / prefill_ms_per_token, the last to count in prefill tokens.
        Raises ValueError for a profile or preference that cannot be.
        """
        if prefill_ms_per_token <= 0:
            raise ValueError(f"prefill_ms_per_token must be > 0, not {prefill_ms_per_token}")
        if min(decode_ms_per_kv_token, output_tokens, omega) < 0:
            raise ValueError("decode_ms_per_kv_token, output_tokens and omega must be >= 0")
        return cls(gamma=omega, kappa=omega * output_tokens * decode_ms_per_kv_token / prefill_ms_per_token)

    def __call__(self, request: RequestView, candidates: Sequence[Candidate], /) -> list[float]:
        return [self._cost(c.uncached_tokens(request), c) for c in candidates]

    def _cost(self, uncached_tokens: int, c: Candidate) -> float:
        own_prefill = uncached_tokens * (self.w + self.gamma * c.active_requests)
        return c.queued_prefill_tokens + own_prefill + self.kappa * c.decode_tokens
