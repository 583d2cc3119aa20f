"""The core's vocabulary: what crosses its boundary, all of it frozen.

What every request makes is a tuple: a frozen dataclass takes three times as long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from policies.views import Candidates, Column
from protocol.sse import Usage


class CacheState(StrEnum):
    """How well a slot's cache is known. Only LIVE blocks count in a match; leases count always."""

    SYNCING = "syncing"  # up, its event history not replayed yet
    LIVE = "live"
    STALE = "stale"  # the event connection is gone; what is known may be wrong
    UNKNOWN = "unknown"  # it publishes no events: what was sent there is taken to be cached


class Outcome(StrEnum):
    """How a ticket ended; exactly one for each."""

    OK = "ok"
    REFUSED = "refused"  # the engine answered, with a status of 400 or above
    REROUTED = "rerouted"  # failed before its first byte, and goes elsewhere or to an error
    BROKEN = "broken"  # failed after its first byte
    CLIENT_GONE = "client_gone"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """An entry of a worker's /v1/models. `parent` is set for an adapter: the model it adapts."""

    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What discovery learned of a worker that is up. `block_size` None: not known until it stores a block."""

    models: tuple[ModelCard, ...]
    block_size: int | None = None
    ranks: tuple[int, ...] = (0,)
    publishes_events: bool = True


class RouteRequest(NamedTuple):
    """A request to place. `prompts` are its token sequences, `prompt_tokens` their sum. Where the router could not
    tokenize, `unknown_prompt` says why, and they are its text, cut up as if into tokens; or nothing, and
    `prompt_tokens` is an estimate. `session` is the client's name for its session, `follow_up` whether the prompt holds
    an earlier answer; None: not known."""

    request_id: str
    model: str | None
    prompt_tokens: int
    prompts: tuple[Sequence[int], ...] = ()
    cache_salt: str | None = None
    unknown_prompt: str | None = None
    session: str | None = None
    follow_up: bool | None = None


class Decision(NamedTuple):
    """Where a request goes and why: the candidates as the policy saw them, and of each, in this order, how well its
    cache was known and the cost the policy gave it. `at_s` is the core's clock."""

    request_id: str
    at_s: float
    model: str | None
    policy: str
    prompt_tokens: int
    candidates: Candidates
    cache_states: tuple[CacheState, ...]
    costs: Column
    slot: str
    predicted_cached_tokens: int
    unknown_prompt: str | None = None


class Placement(NamedTuple):
    """A reserved place. The shell answers it with at most one `on_first_token` and exactly one `on_finish`.

    `rank` is the data-parallel rank to name to the worker, or None where it has but one.
    """

    ticket: int
    worker: str
    url: str
    rank: int | None
    decision: Decision


class Finish(NamedTuple):
    """The end of a placement; `usage` as the engine reported it."""

    outcome: Outcome
    at_s: float
    ttft_s: float | None
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class SlotReport:
    """One slot's state, for people and metrics."""

    slot: str
    rank: int
    cache_state: CacheState
    generation: int
    block_size: int | None
    blocks: int
    orphans: int
    orphans_dropped: int
    unmappable_events: int
    evicted_blocks: int
    active_requests: int
    queued_prefill_tokens: float
    decode_tokens: int
    prefill_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class WorkerReport:
    id: str
    url: str
    health: str
    draining: bool
    reason: str | None
    models: tuple[str, ...]
    slots: tuple[SlotReport, ...]
