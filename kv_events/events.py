"""KV-cache events as values: what an engine says of its prefix cache, whatever form it had on the wire.

The field names are those of vLLM's `BlockStored` / `BlockRemoved` / `AllBlocksCleared` (vllm/distributed/kv_events.py),
the union of every version that `codec` reads. A value that the engine left out is None. They are tuples, for they come
by thousands a second, and a frozen dataclass takes three times as long to make.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

EngineHash: TypeAlias = int | bytes
"""A block's name on its engine: unsigned 64-bit (vLLM), signed 64-bit (SGLang) or a raw digest. Only ever compared."""

GPU_MEDIUM = "GPU"


class BlockStored(NamedTuple):
    """Consecutive full blocks entered the cache; the first one follows `parent_block_hash` (None: it starts a prompt).

    `token_ids` covers all of them, `block_size` tokens each. `extra_keys` has one entry a block: what was hashed beside
    the tokens (adapter name, multimodal identifiers, on the first block of a prompt the cache salt).
    """

    block_hashes: tuple[EngineHash, ...]
    parent_block_hash: EngineHash | None
    token_ids: Sequence[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = GPU_MEDIUM
    lora_name: str | None = None
    extra_keys: tuple[tuple[object, ...] | None, ...] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    cache_salt: str | None = None


class BlockRemoved(NamedTuple):
    """These blocks left `medium`. A name that was never stored is possible and means nothing."""

    block_hashes: tuple[EngineHash, ...]
    medium: str | None = GPU_MEDIUM
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The engine forgot every block."""


KvEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(NamedTuple):
    """What one engine step did to the cache, in order. `skipped` counts events of an unknown type or a wrong shape."""

    ts_s: float
    events: tuple[KvEvent, ...]
    data_parallel_rank: int | None = None
    skipped: int = 0
