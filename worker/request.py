"""The engine's vocabulary: what goes in (a request) and what comes out (one token at a time)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class FinishReason(StrEnum):
    STOP = "stop"  # end-of-sequence token, a stop token, or (found by the detokenizer) a stop string
    LENGTH = "length"  # max_tokens or the model's context is used up
    ABORT = "abort"  # the client went away or the worker shuts down
    ERROR = "error"  # the runner failed; the text is in `TokenOutput.error`


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to pick tokens. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 switch the filters off.

    `logprobs` is the number of alternatives to report beside the chosen token (0: only its own; None: none at all).
    `seed` None draws from the engine's own generator. Stop strings are the detokenizer's work, not the engine's.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate. `adapter` and `cache_salt` separate caches: they are part of every block's hash."""

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    adapter: str | None = None
    cache_salt: str | None = None


class TokenOutput(NamedTuple):
    """One step's news of one request: a token, its finish, or both.

    `token_id` is None only for ABORT and ERROR. `cached_tokens` is the prompt's prefix that was not computed again,
    the same number in every output of a request. `top_logprobs` is best first.
    """

    request_id: str
    token_id: int | None
    cached_tokens: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    error: str | None = None
