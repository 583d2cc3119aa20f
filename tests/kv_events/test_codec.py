"""The codec against captures of real engines, every older form, and whatever else may come."""

from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_events.codec import DecodeError, decode_batch, encode_batch
from kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, EventBatch

Frames = Callable[[str], list[dict[str, Any]]]

STORED = (  # the fields of a BlockStored array, in the order of vLLM 0.23
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
)
REMOVED = ("block_hashes", "medium", "group_idx")
STORED_FIELDS_OF = {"0.11.0": 6, "0.12.0": 6, "0.17.0": 8, "0.21.0": 9, "0.23.0": 11}
CLASSES = {"BlockStored": BlockStored, "BlockRemoved": BlockRemoved, "AllBlocksCleared": AllBlocksCleared}


def value(captured: Any) -> Any:
    """A captured JSON value as the codec gives it: tuples, and bytes where the capture has {"$hex": ...}."""
    if isinstance(captured, list):
        return tuple(map(value, captured))
    if isinstance(captured, dict):
        return bytes.fromhex(captured["$hex"])
    return captured


def event(captured: Any) -> BlockStored | BlockRemoved | AllBlocksCleared:
    """A captured event, map or array, as a value; what it lacks is None."""
    if isinstance(captured, list):
        names = {"BlockStored": STORED, "BlockRemoved": REMOVED, "AllBlocksCleared": ()}[captured[0]]
        captured = {"type": captured[0], **dict(zip(names, captured[1:], strict=False))}
    fields = {name: value(field) for name, field in captured.items() if name != "type"}
    if captured["type"] != "AllBlocksCleared":
        fields = {"medium": None, **fields}
    return CLASSES[captured["type"]](**fields)


@pytest.mark.parametrize("name", ["vllm_events.jsonl", "vllm_events_legacy.jsonl", "sglang_events.jsonl"])
def test_every_captured_frame_decodes_to_what_was_captured(frames: Frames, name: str) -> None:
    for frame in frames(name):
        ts, events, rank = frame["decoded"]
        expected = EventBatch(ts, tuple(map(event, events)), rank)
        assert decode_batch(bytes.fromhex(frame["payload_hex"])) == expected, frame["cause"]


def test_captures_hold_what_the_test_above_needs(frames: Frames) -> None:
    counts = [len(frames(name)) for name in ("vllm_events.jsonl", "vllm_events_legacy.jsonl", "sglang_events.jsonl")]
    assert counts == [49, 42, 10]


def test_encoding_gives_the_bytes_of_vllm(frames: Frames) -> None:
    for frame in frames("vllm_events.jsonl"):
        payload = bytes.fromhex(frame["payload_hex"])
        assert encode_batch(decode_batch(payload)) == payload, frame["cause"]


def test_optional_keys_stand_in_the_order_of_vllm() -> None:
    order = [*STORED, "locality", "ownership", "session_id"]
    stored = BlockStored((7,), 6, (1, 2), 2, 1, "GPU", "a", (("a",),), 0, "mla_attention", 128, "LOCAL", "tier", "s")
    [encoded] = msgpack.unpackb(encode_batch(EventBatch(1.0, (stored,), 0)))[1]
    assert list(encoded) == ["type", *order]
    [encoded] = msgpack.unpackb(encode_batch(EventBatch(1.0, (BlockRemoved((7,), "GPU", 0, "LOCAL", "tier"),), 0)))[1]
    assert list(encoded) == ["type", *REMOVED, "locality", "ownership"]


def test_every_old_form_agrees_with_the_new_one(frames: Frames) -> None:
    new = {f["seq"]: decode_batch(bytes.fromhex(f["payload_hex"])) for f in frames("vllm_events.jsonl")[:31]}
    versions = set()
    for frame in frames("vllm_events_legacy.jsonl"):
        if frame["version"] not in STORED_FIELDS_OF:
            continue
        versions.add(frame["version"])
        kept = STORED_FIELDS_OF[frame["version"]]
        old = decode_batch(bytes.fromhex(frame["payload_hex"]))
        assert [type(e) for e in old.events] == [type(e) for e in new[frame["seq"]].events]
        for old_event, new_event in zip(old.events, new[frame["seq"]].events, strict=True):
            names = {BlockStored: STORED[:kept], BlockRemoved: REMOVED[: 3 if kept > 8 else 2]}.get(type(new_event), ())
            for name in names:
                assert getattr(old_event, name) == getattr(new_event, name), (frame["version"], name)
    assert versions == set(STORED_FIELDS_OF)


def batch(*events: Any) -> bytes:
    return msgpack.packb([1.5, events, 0])


STORED_MAP = {
    "type": "BlockStored",
    "block_hashes": [7],
    "parent_block_hash": None,
    "token_ids": [1, 2],
    "block_size": 2,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
}


def test_tails_and_keys_of_later_versions_are_ignored() -> None:
    tail = ["BlockStored", [7], None, [1, 2], 2, None, "GPU", None, None, None, None, None, "news", {"more": 1}]
    key = {**STORED_MAP, "lookahead_token_ids": [[3]], "news": {"more": 1}}
    removed = ["BlockRemoved", [7], "GPU", 0, "news"]
    decoded = decode_batch(batch(tail, key, removed, ["AllBlocksCleared", 1]))
    stored = BlockStored((7,), None, (1, 2), 2)
    assert decoded.events == (stored, stored, BlockRemoved((7,), "GPU", 0), AllBlocksCleared())
    assert decoded.skipped == 0


@pytest.mark.parametrize("length", [2, 3, 4])
def test_batch_of_any_length_is_read(length: int) -> None:
    decoded = decode_batch(msgpack.packb([1, [["AllBlocksCleared"]], 3, "news"][:length]))
    assert decoded == EventBatch(1, (AllBlocksCleared(),), 3 if length > 2 else None)


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "BlockMoved", "block_hashes": [1]},
        ["BlockMoved", 1],
        {"block_hashes": [1]},
        {"type": ["BlockStored"]},
        [],
        [["BlockStored"], [1]],
        "BlockStored",
        None,
        3,
        ["BlockStored", [1], None, [1, 2]],
        ["BlockRemoved"],
        {**STORED_MAP, "block_hashes": 7},
        {**STORED_MAP, "block_hashes": ["7"]},
        {**STORED_MAP, "block_hashes": [None]},
        {**STORED_MAP, "parent_block_hash": "7"},
        {**STORED_MAP, "token_ids": None},
        {**STORED_MAP, "token_ids": [1, None]},
        {**STORED_MAP, "token_ids": [1, 2.0]},
        {**STORED_MAP, "token_ids": [1, "two"]},
        {**STORED_MAP, "token_ids": [1, "9" * 5000]},
        {**STORED_MAP, "token_ids": [1, [2, 3, 4]]},
        {**STORED_MAP, "block_size": None},
        {**STORED_MAP, "block_size": "2"},
        {**STORED_MAP, "lora_name": 1},
        {**STORED_MAP, "extra_keys": ["salt"]},
        {**STORED_MAP, "cache_salt": b"salt"},
    ],
    ids=repr,
)
def test_event_that_cannot_be_understood_is_counted_and_costs_nothing_else(bad: Any) -> None:
    decoded = decode_batch(batch(["AllBlocksCleared"], bad, STORED_MAP))
    assert decoded.events == (AllBlocksCleared(), BlockStored((7,), None, (1, 2), 2))
    assert decoded.skipped == 1


@pytest.mark.parametrize(
    "token_ids",
    [[1, 2, 3], ["1", "2", "3"], [[1, 2], [2, 3], [3, 4]], [1, "2", [3, 4]]],
    ids=["ids", "text", "pairs", "mixed"],
)
def test_token_ids_in_every_form(token_ids: list[Any]) -> None:
    [stored] = decode_batch(batch({**STORED_MAP, "token_ids": token_ids})).events
    assert isinstance(stored, BlockStored)
    assert stored.token_ids == (1, 2, 3)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "payload of 0 bytes is not msgpack"),
        (b"\x91" * 5000, "not msgpack"),
        (b"\xc1", "payload of 1 bytes is not msgpack"),
        (msgpack.packb([1.0, []]) + b"\0", "not msgpack"),
        (b"\x81\x90\x01", "batch: must be an array"),  # a map whose key is an array
        (b"\x81\x91\x80\x01", "not msgpack"),  # a map whose key holds a map
        (msgpack.packb({"events": []}), "batch: must be an array"),
        (msgpack.packb([1.0]), "batch: must be an array"),
        (msgpack.packb(["now", []]), r"batch\[0\], ts: must be a number, is str"),
        (msgpack.packb([1.0, {}]), r"batch\[1\], events: must be an array, is dict"),
        (msgpack.packb([1.0, [], "0"]), r"batch\[2\], data_parallel_rank: must be an integer or nil, is str"),
    ],
)
def test_error_says_what_and_where(payload: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        decode_batch(payload)


hashes = st.lists(st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=32)).map(tuple)
texts = st.none() | st.text()
numbers = st.none() | st.integers(0, 2**31)
keys = st.lists(st.text() | st.binary() | st.tuples(st.text(), st.integers(0, 100))).map(tuple)
stored_events = st.builds(
    BlockStored,
    block_hashes=hashes,
    parent_block_hash=st.none() | st.integers(0, 2**64 - 1) | st.binary(),
    token_ids=st.lists(st.integers(0, 2**32 - 1)).map(tuple),
    block_size=st.integers(0, 512),
    lora_id=numbers,
    medium=texts,
    lora_name=texts,
    extra_keys=st.none() | st.lists(st.none() | keys).map(tuple),
    group_idx=numbers,
    kv_cache_spec_kind=texts,
    kv_cache_spec_sliding_window=numbers,
    locality=texts,
    ownership=texts,
    session_id=texts,
    cache_salt=texts,
)
removed_events = st.builds(BlockRemoved, hashes, texts, numbers, texts, texts)
batches = st.builds(
    EventBatch,
    ts_s=st.floats(allow_nan=False),
    events=st.lists(stored_events | removed_events | st.just(AllBlocksCleared())).map(tuple),
    data_parallel_rank=numbers,
    skipped=st.just(0),
)


@given(batches)
def test_what_is_encoded_decodes_to_the_same(batch: EventBatch) -> None:
    assert decode_batch(encode_batch(batch)) == batch


def test_text_that_is_not_unicode_survives() -> None:
    """JSON may hold half of a surrogate pair, and so may a cache salt."""
    batch = EventBatch(1.0, (BlockStored((7,), None, (1, 2), 2, extra_keys=(("\ud800",),)),), 0)
    assert decode_batch(encode_batch(batch)) == batch


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_a_decode_error(payload: bytes) -> None:
    try:
        assert isinstance(decode_batch(payload), EventBatch)
    except DecodeError:
        pass


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=5),
    max_leaves=20,
)
names = st.sampled_from([*STORED, "cache_salt", "session_id", "type"])
event_like = st.tuples(st.sampled_from(sorted(CLASSES)), st.lists(anything, max_size=12)).map(
    lambda pair: [pair[0], *pair[1]]
) | st.dictionaries(names, anything).flatmap(
    lambda fields: st.sampled_from(sorted(CLASSES)).map(lambda tag: {"type": tag, **fields})
)


@given(st.lists(event_like | anything, max_size=5))
def test_anything_in_place_of_an_event_is_read_or_counted(events: list[Any]) -> None:
    decoded = decode_batch(batch(*events))
    assert len(decoded.events) + decoded.skipped == len(events)


@given(st.data())
def test_a_captured_payload_with_a_wrong_byte_raises_nothing_but_a_decode_error(
    frames: Frames, data: st.DataObject
) -> None:
    payload = bytearray.fromhex(data.draw(st.sampled_from(frames("vllm_events.jsonl")))["payload_hex"])
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_batch(bytes(payload))
    except DecodeError:
        pass
