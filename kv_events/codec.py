"""The batch payload: msgpack in, values out, and back.

A batch is `[ts, [event, ...], data_parallel_rank]`. An event is a map with its class name under "type" (vLLM since
0.24, SGLang, TensorRT-LLM), or before that an array of the class name and the fields in order. Later versions only
append: unknown keys and extra positions are ignored. What cannot be understood costs one event, not its batch.
"""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgpack

from kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, EventBatch, KvEvent

_POSITIONS: dict[str, tuple[str, ...]] = {  # vLLM 0.11 to 0.23, each version a prefix of this
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
_STORED_WHEN_SET = (  # in vLLM's order, which its encoder keeps; cache_salt is SGLang's
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
    "ownership",
    "session_id",
    "cache_salt",
)
_REMOVED_WHEN_SET = ("group_idx", "locality", "ownership")
_TOKEN_DIGITS = 10  # of the largest 32-bit token id

V = TypeVar("V")


class DecodeError(ValueError):
    """A payload is not a batch. The message says what is wrong and where."""


class _MalformedEvent(Exception):
    """An event of a known type has the wrong shape."""


def decode_batch(payload: bytes) -> EventBatch:
    """Reads a batch in either form. Events of unknown type or wrong shape are left out and counted in `skipped`.

    Raises DecodeError when the batch itself cannot be read.
    """
    try:
        fields = msgpack.unpackb(payload, use_list=False, strict_map_key=False, unicode_errors="surrogatepass")
    except (ValueError, TypeError) as error:  # TypeError: a map key that cannot be hashed
        raise DecodeError(f"payload of {len(payload)} bytes is not msgpack: {error}") from error
    if type(fields) is not tuple or len(fields) < 2:
        raise DecodeError("batch: must be an array [ts, events, data_parallel_rank]")
    ts, raw_events, rank = fields[0], fields[1], fields[2] if len(fields) > 2 else None
    if not isinstance(ts, int | float):
        raise DecodeError(f"batch[0], ts: must be a number, is {type(ts).__name__}")
    if type(raw_events) is not tuple:
        raise DecodeError(f"batch[1], events: must be an array, is {type(raw_events).__name__}")
    if not isinstance(rank, int | None):
        raise DecodeError(f"batch[2], data_parallel_rank: must be an integer or nil, is {type(rank).__name__}")
    events = tuple(event for raw in raw_events if (event := _decode_event(raw)) is not None)
    return EventBatch(ts, events, rank, skipped=len(raw_events) - len(events))


def encode_batch(batch: EventBatch) -> bytes:
    """Writes the map form exactly as vLLM 0.32 does: keys in its order, optional ones only when set."""
    fields = (float(batch.ts_s), [_encode_event(event) for event in batch.events], batch.data_parallel_rank)
    return cast(bytes, msgpack.packb(fields, unicode_errors="surrogatepass"))


def _decode_event(raw: object) -> KvEvent | None:
    """The event, or None when its type is unknown or its shape is wrong."""
    if type(raw) is dict:
        tag, fields = raw.get("type"), raw
    elif type(raw) is tuple and raw and isinstance(raw[0], str):
        tag, fields = raw[0], dict(zip(_POSITIONS.get(raw[0], ()), raw[1:], strict=False))
    else:
        return None
    try:
        match tag:
            case "BlockStored":
                return _decode_stored(fields)
            case "BlockRemoved":
                return _decode_removed(fields)
            case "AllBlocksCleared":
                return AllBlocksCleared()
            case _:
                return None
    except _MalformedEvent:
        return None


def _decode_stored(fields: Mapping[str, Any]) -> BlockStored:
    return BlockStored(
        block_hashes=_hashes(fields.get("block_hashes")),
        parent_block_hash=_parent_hash(fields.get("parent_block_hash")),
        token_ids=_token_ids(fields.get("token_ids")),
        block_size=_required_int(fields.get("block_size")),
        lora_id=_optional(fields, "lora_id", int),
        medium=_optional(fields, "medium", str),
        lora_name=_optional(fields, "lora_name", str),
        extra_keys=_extra_keys(fields.get("extra_keys")),
        group_idx=_optional(fields, "group_idx", int),
        kv_cache_spec_kind=_optional(fields, "kv_cache_spec_kind", str),
        kv_cache_spec_sliding_window=_optional(fields, "kv_cache_spec_sliding_window", int),
        locality=_optional(fields, "locality", str),
        ownership=_optional(fields, "ownership", str),
        session_id=_optional(fields, "session_id", str),
        cache_salt=_optional(fields, "cache_salt", str),
    )


def _decode_removed(fields: Mapping[str, Any]) -> BlockRemoved:
    return BlockRemoved(
        block_hashes=_hashes(fields.get("block_hashes")),
        medium=_optional(fields, "medium", str),
        group_idx=_optional(fields, "group_idx", int),
        locality=_optional(fields, "locality", str),
        ownership=_optional(fields, "ownership", str),
    )


def _optional(fields: Mapping[str, Any], name: str, kind: type[V]) -> V | None:
    value = fields.get(name)
    if value is None or isinstance(value, kind):
        return value
    raise _MalformedEvent


def _required_int(value: object) -> int:
    if type(value) is not int:
        raise _MalformedEvent
    return value


def _parent_hash(value: object) -> EngineHash | None:
    if value is None or isinstance(value, int | bytes):
        return value
    raise _MalformedEvent


def _hashes(value: object) -> tuple[EngineHash, ...]:
    if type(value) is not tuple or not set(map(type, value)) <= {int, bytes}:
        raise _MalformedEvent
    return value


def _extra_keys(value: object) -> tuple[tuple[object, ...] | None, ...] | None:
    if value is None:
        return None
    if type(value) is not tuple or not set(map(type, value)) <= {tuple, type(None)}:
        raise _MalformedEvent
    return value


def _token_ids(value: object) -> tuple[int, ...]:
    """All as they are when all are integers; else one by one.

    `sum` checks that in a single pass in C (a quarter of the time of looking at each type): only numbers add up, and
    only integers add up to one.
    """
    if type(value) is not tuple:
        raise _MalformedEvent
    try:
        total = sum(value)
    except TypeError:
        return tuple(map(_token_id, value))
    if type(total) is not int:
        raise _MalformedEvent
    return value


def _token_id(value: object) -> int:
    """A token as an integer, as digits (TensorRT-LLM) or as the first of an EAGLE pair (SGLang)."""
    if type(value) is tuple and len(value) == 2:
        value = value[0]
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) <= _TOKEN_DIGITS:
        return int(value)
    raise _MalformedEvent


def _encode_event(event: KvEvent) -> dict[str, object]:
    match event:
        case BlockStored():
            always = {
                "type": "BlockStored",
                "block_hashes": event.block_hashes,
                "parent_block_hash": event.parent_block_hash,
                "token_ids": tuple(event.token_ids),
                "block_size": event.block_size,
                "lora_id": event.lora_id,
                "medium": event.medium,
                "lora_name": event.lora_name,
            }
            return always | _set_fields(event, _STORED_WHEN_SET)
        case BlockRemoved():
            always = {"type": "BlockRemoved", "block_hashes": event.block_hashes, "medium": event.medium}
            return always | _set_fields(event, _REMOVED_WHEN_SET)
        case AllBlocksCleared():
            return {"type": "AllBlocksCleared"}


def _set_fields(event: KvEvent, names: tuple[str, ...]) -> dict[str, object]:
    return {name: value for name in names if (value := getattr(event, name)) is not None}
