"""The default policy: place a request where serving it means the least work, for itself and for its neighbours."""

from dataclasses import dataclass

import numpy as np

from policies.parameters import Amount
from policies.views import Candidates, Column, RequestView


@dataclass(frozen=True, slots=True)
class ExpectedWork:
    """cost = wait + miss_price * prefill + omega * (stalls + decoding), in milliseconds of a worker:

    prefill   u * prefill_token_ms: this prompt, where it is not cached
    wait      Q * prefill_token_ms + min(w * prefill_pass_ms, prefill): what is prefilled first. Each of the w that wait
              takes a pass, but a prompt as short as that, or as warm, joins one of theirs
    stalls    n * prefill: the requests that decode there stand still while it is prefilled
    decoding  (answer_tokens / 2) * decode_kv_token_ms * (d + d's mean of late) / 2: KV tokens that lengthen this
              answer's decode steps

    An answer meets a neighbour for half of its own length on average, since one of the two has begun already or ends
    first. And of the neighbours that it meets, half are there now and half are yet to come: those are as many as there
    were of late, which is also what the follow-ups of this prompt will meet.

    `omega` is the worth of a millisecond of decoding in milliseconds of TTFT, `miss_price` the worth of a computed
    token: above 1, for its block also drives another one out, and who comes next waits. The others are a worker's
    profile, as `warmroute replay --calibrate` measures and names it, and the length of an answer that nothing is known
    about. The defaults are those of a large GPU (NVIDIA Dynamo's polynomial model, whose pool of 1,048,576 tokens takes
    54 ms a step more when it is full than its slope at the empty pool begins with). docs/policies.md tells how omega
    was chosen, and what other values do.

    Shines where prompts share prefixes and workers are loaded unevenly. Does not know how long an answer will be: a
    worker with few long generations looks like one with few short ones. Counts in one profile: of unlike workers, the
    slow one is known by its longer queue only. Its cases are least-prefill (omega and prefill_pass_ms 0) and, but for
    d's mean, NVIDIA Dynamo's sum of prefill and decode blocks; n * u is of LMetric's product (OSDI'26).
    """

    omega: Amount = 0.14
    miss_price: Amount = 1.2
    answer_tokens: Amount = 350.0
    prefill_token_ms: Amount = 0.01518
    prefill_pass_ms: Amount = 16.5
    decode_kv_token_ms: Amount = 5.15e-5

    def __call__(self, request: RequestView, candidates: Candidates, /) -> Column:
        prefill_ms = candidates.uncached_tokens(request) * self.prefill_token_ms
        passes_ms = np.minimum(candidates.waiting_requests * self.prefill_pass_ms, prefill_ms)
        wait_ms = candidates.queued_prefill_tokens * self.prefill_token_ms + passes_ms
        stalled = candidates.active_requests
        token_ms = self.answer_tokens / 2 * self.decode_kv_token_ms / 2
        decoding_ms = (candidates.decode_tokens + candidates.mean_decode_tokens) * (self.omega * token_ms)
        return wait_ms + prefill_ms * (self.miss_price + self.omega * stalled) + decoding_ms
