"""Block hashes: a name is its whole prefix, and engines' own names agree with ours on every capture."""

import pickle
import struct
from array import array
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64

from kv_events.codec import decode_batch
from kv_events.events import BlockStored
from kv_events.hashing import (
    UnmappableEvent,
    block_hashes,
    cache_digests,
    cache_root,
    published_hash,
    published_hashes,
    root_hash,
    stored_hashes,
)

Frames = Callable[[str], list[dict[str, Any]]]

tokens = st.lists(st.integers(0, 2**32 - 1), max_size=60)
few_tokens = st.lists(st.integers(0, 1), max_size=30)
sizes = st.integers(1, 9)
names = st.none() | st.text(min_size=1)


@given(tokens, sizes, st.integers(0, 2**64 - 1))
def test_hashes_equal_a_slow_reference(token_ids: list[int], block_size: int, root: int) -> None:
    expected, parent = [], root
    for end in range(block_size, len(token_ids) + 1, block_size):
        block = b"".join(struct.pack("<I", token) for token in token_ids[end - block_size : end])
        parent = xxh3_64(block, seed=parent).intdigest()
        expected.append(parent)
    assert block_hashes(token_ids, block_size, root) == expected
    assert block_hashes(array("I", token_ids), block_size, root) == expected


@given(tokens, sizes, st.binary(min_size=32, max_size=32))
def test_digests_equal_a_slow_reference(token_ids: list[int], block_size: int, root: bytes) -> None:
    expected, parent = [], root
    for end in range(block_size, len(token_ids) + 1, block_size):
        digest = sha256(parent)
        for token in token_ids[end - block_size : end]:
            digest.update(token.to_bytes(4, "little"))
        parent = digest.digest()
        expected.append(parent)
    assert cache_digests(token_ids, block_size, root) == expected


@given(few_tokens, few_tokens, sizes)
def test_hashes_agree_exactly_as_far_as_whole_blocks_do(one: list[int], other: list[int], block_size: int) -> None:
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    for name_blocks in (
        lambda ids: block_hashes(ids, block_size, root_hash()),
        lambda ids: cache_digests(ids, block_size, cache_root()),
    ):
        pairs = list(zip(name_blocks(one), name_blocks(other), strict=False))
        assert [a == b for a, b in pairs] == [i < shared // block_size for i in range(len(pairs))]


@given(few_tokens, sizes, st.integers(0, 5))
def test_hashing_goes_on_from_any_block(token_ids: list[int], block_size: int, blocks: int) -> None:
    whole = block_hashes(token_ids, block_size, root_hash())
    head = whole[:blocks]
    rest = block_hashes(token_ids[len(head) * block_size :], block_size, head[-1] if head else root_hash())
    assert head + rest == whole


@given(st.tuples(names, names), st.tuples(names, names))
def test_every_adapter_and_salt_has_a_cache_of_its_own(one: Any, other: Any) -> None:
    assert (root_hash(*one) == root_hash(*other)) == (one == other)
    assert (cache_root(*one) == cache_root(*other)) == (one == other)


def test_empty_salt_is_none() -> None:
    assert root_hash("a", "") == root_hash("a")
    assert cache_root("a", "") == cache_root("a")


def test_names_stay_what_they_are() -> None:
    """Workers of different versions share a fleet, and their names for a block have to agree."""
    assert published_hash(cache_digests(range(4), 2, cache_root("a", "s"))[-1]) == 2991257863860044767
    assert block_hashes(range(4), 2, root_hash("a", "s"))[-1] == 14207215471175447435


@pytest.mark.parametrize("count", [0, 1, 5])
def test_many_published_hashes_are_those_of_each(count: int) -> None:
    digests = cache_digests(range(4 * count), 4, cache_root())
    assert published_hashes(digests) == tuple(map(published_hash, digests))


def test_published_hash_is_the_one_of_vllm(frames: Frames) -> None:
    """The first captured block, hashed as vLLM does: SHA-256 over a pickle, chained to the hash of a fixed seed."""
    [stored] = decode_batch(bytes.fromhex(frames("vllm_events.jsonl")[0]["payload_hex"])).events
    assert isinstance(stored, BlockStored)
    digest = sha256(pickle.dumps("vllm-none-hash", protocol=5)).digest()
    for index, engine_hash in enumerate(stored.block_hashes):
        block = stored.token_ids[index * stored.block_size : (index + 1) * stored.block_size]
        digest = sha256(pickle.dumps((digest, block, None), protocol=5)).digest()
        assert published_hash(digest) == engine_hash


def engines(frames: Frames, name: str) -> dict[str, list[BlockStored]]:
    """The stored events of a capture by engine, each with hashes of one kind."""
    stored: dict[str, list[BlockStored]] = {}
    for frame in frames(name):
        events = decode_batch(bytes.fromhex(frame["payload_hex"])).events
        stored.setdefault(frame.get("version", frame["topic"]), []).extend(
            e for e in events if isinstance(e, BlockStored)
        )
    return stored


def names_by_engine_hash(stored: list[BlockStored]) -> dict[int | bytes, int]:
    ours: dict[int | bytes, int] = {}
    for event in stored:
        if event.parent_block_hash is not None and event.parent_block_hash not in ours:
            continue  # the legacy capture is an excerpt
        if event.lora_id is not None and event.lora_name is None:
            continue  # of an adapter without a name nothing can be said
        parent = None if event.parent_block_hash is None else ours[event.parent_block_hash]
        for engine_hash, our_hash in zip(event.block_hashes, stored_hashes(event, parent), strict=True):
            assert ours.setdefault(engine_hash, our_hash) == our_hash
    return ours


@pytest.mark.parametrize("name", ["vllm_events.jsonl", "vllm_events_legacy.jsonl", "sglang_events.jsonl"])
def test_we_tell_blocks_apart_exactly_as_engines_do(frames: Frames, name: str) -> None:
    for engine, stored in engines(frames, name).items():
        ours = names_by_engine_hash(stored)
        assert len(ours) >= 2
        if engine not in {"0.11.0", "0.12.0"}:  # which do not tell the salt
            assert len(set(ours.values())) == len(ours), engine


def test_prompts_find_the_blocks_that_their_events_stored(records: Callable[[str], list[dict[str, Any]]]) -> None:
    """The engine of the first capture: every full block of every prompt is named as its event named it."""
    one_engine = records("vllm_events.jsonl")[:92]  # until the next engine
    payloads = [bytes.fromhex(r["payload_hex"]) for r in one_engine if "payload_hex" in r]
    events = [e for payload in payloads for e in decode_batch(payload).events if isinstance(e, BlockStored)]
    stored = set(names_by_engine_hash(events).values())
    requests = {r["id"]: r["body"] for r in one_engine if r["kind"] == "request"}
    responses = {r["id"]: r["prompt_token_ids"] for r in one_engine if r["kind"] == "response"}
    assert len(responses) == 25
    for request_id, prompt in responses.items():
        body = requests[request_id]
        adapter = body["model"] if body["model"] != "smollm2" else None
        assert set(block_hashes(prompt, 32, root_hash(adapter, body.get("cache_salt")))) <= stored, request_id


TEXT = BlockStored(block_hashes=(1, 2), parent_block_hash=None, token_ids=(5, 6, 7, 8), block_size=2)


def named(event: BlockStored, adapter: str | None = None, salt: str | None = None) -> bool:
    """True when a text prompt of these tokens is named as the event is."""
    return stored_hashes(event, None) == block_hashes(event.token_ids, event.block_size, root_hash(adapter, salt))


def test_adapter_and_salt_are_found_wherever_an_engine_puts_them() -> None:
    assert named(TEXT)
    assert named(TEXT._replace(extra_keys=(None, None)))
    assert named(TEXT._replace(extra_keys=((), None)))
    assert named(TEXT._replace(extra_keys=(("s",), None)), salt="s")
    assert named(TEXT._replace(cache_salt="s"), salt="s")
    assert named(TEXT._replace(cache_salt="s", extra_keys=(("s",), None)), salt="s")
    lora = TEXT._replace(lora_id=1, lora_name="a")
    assert named(lora, "a")
    assert named(lora._replace(extra_keys=(("a",), ("a",))), "a")
    assert named(lora._replace(extra_keys=(("a", "s"), ("a",))), "a", "s")
    assert named(lora._replace(extra_keys=(("a", "a"), ("a",))), "a", "a")


def test_adapter_in_a_later_event_is_covered_by_the_root() -> None:
    lora = TEXT._replace(lora_name="a", extra_keys=(("a",), ("a",)))
    first = stored_hashes(lora, None)
    later = lora._replace(parent_block_hash=2, token_ids=(9, 10, 11, 12))
    assert first + stored_hashes(later, first[-1]) == block_hashes((5, 6, 7, 8, 9, 10, 11, 12), 2, root_hash("a"))


@pytest.mark.parametrize("key", [("image", 0), b"digest", ("image", 1)])
@pytest.mark.parametrize("at", [0, 1])
def test_block_with_more_than_text_is_named_as_no_text_is(key: object, at: int) -> None:
    extra_keys = tuple((key,) if i == at else None for i in range(2))
    text, hashes = stored_hashes(TEXT, None), stored_hashes(TEXT._replace(extra_keys=extra_keys), None)
    assert [a == b for a, b in zip(text, hashes, strict=True)] == [i < at for i in range(2)]
    other = stored_hashes(TEXT._replace(extra_keys=tuple(k and (("other", 0),) for k in extra_keys)), None)
    assert hashes[1] != other[1]


def test_text_key_in_a_later_event_is_no_salt() -> None:
    later = TEXT._replace(parent_block_hash=2)
    salted = later._replace(extra_keys=(("s",), None))
    assert not set(stored_hashes(later, 3)) & set(stored_hashes(salted, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_size": 0}, "4 tokens are not 2 blocks of 0"),
        ({"block_size": -2}, "not 2 blocks"),
        ({"block_size": 4}, "not 2 blocks"),
        ({"block_hashes": (1,)}, "not 1 blocks"),
        ({"kv_cache_spec_kind": "mamba"}, "a mamba cache"),
        ({"kv_cache_spec_kind": "sliding_window"}, "a sliding_window cache"),
        ({"kv_cache_spec_kind": "full_attention", "kv_cache_spec_sliding_window": 128}, "whole prefixes"),
        ({"extra_keys": (None,)}, "1 entries of extra keys for 2 blocks"),
        ({"lora_id": 1}, "adapter 1 has no name"),
        ({"token_ids": (1, 2, 3, -1)}, "cannot be hashed"),
        ({"token_ids": (), "block_hashes": (), "block_size": 2**64}, "cannot be hashed"),
        ({"token_ids": (1, 2, 3, 2**32)}, "cannot be hashed"),
    ],
)
def test_event_that_names_no_text_prefix_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnmappableEvent, match=message):
        stored_hashes(TEXT._replace(**change), None)


@pytest.mark.parametrize("kind", [None, "full_attention", "mla_attention"])
def test_caches_of_whole_prefixes_are_taken(kind: str | None) -> None:
    assert named(TEXT._replace(kv_cache_spec_kind=kind))


def test_keys_nested_too_deep_are_refused() -> None:
    nested: tuple[object, ...] = ()
    for _ in range(2000):
        nested = (nested,)
    with pytest.raises(UnmappableEvent, match="cannot be hashed"):
        stored_hashes(TEXT._replace(extra_keys=((nested,), None)), None)
