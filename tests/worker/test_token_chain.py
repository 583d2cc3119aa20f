"""Chains of block digests, and the events that announce them in vLLM 0.32's form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_events.hashing import cache_digests, cache_root, published_hash
from worker.token_chain import TokenChain

TOKENS = st.lists(st.integers(0, 9), max_size=20)


@given(TOKENS, TOKENS)
def test_digests_do_not_depend_on_when_tokens_came(first: list[int], later: list[int]) -> None:
    grown = TokenChain(first, 4)
    grown.digests(len(first) // 4)
    for token_id in later:
        grown.append(token_id)
    blocks = len(grown) // 4
    assert grown.digests(blocks) == cache_digests([*first, *later], 4, cache_root(None, None))


@pytest.mark.parametrize("other", [{"adapter": "a"}, {"salt": "s"}, {"adapter": "a", "salt": "s"}])
def test_adapter_and_salt_reach_every_block(other: dict[str, str]) -> None:
    plain, separate = TokenChain(range(12), 4), TokenChain(range(12), 4, **other)
    assert not set(plain.digests(3)) & set(separate.digests(3))


def test_event_of_a_prompts_first_blocks() -> None:
    chain = TokenChain(range(10), 4)
    event = chain.stored_event(0, 2)
    assert event.block_hashes == tuple(published_hash(digest) for digest in chain.digests(2))
    assert event.parent_block_hash is None
    assert tuple(event.token_ids) == tuple(range(8))
    assert (event.block_size, event.group_idx, event.kv_cache_spec_kind, event.medium) == (
        4,
        0,
        "full_attention",
        "GPU",
    )
    assert (event.lora_name, event.extra_keys) == (None, (None, None))


def test_event_of_later_blocks_names_their_parent() -> None:
    chain = TokenChain(range(12), 4)
    event = chain.stored_event(1, 3)
    parent, *hashes = (published_hash(digest) for digest in chain.digests(3))
    assert (event.parent_block_hash, event.block_hashes) == (parent, tuple(hashes))
    assert tuple(event.token_ids) == tuple(range(4, 12))


def test_extra_keys_as_vllm_publishes_them() -> None:
    """The salt on the first block only, the adapter on all and before it."""
    salted = TokenChain(range(8), 4, salt="tenant-a")
    assert salted.stored_event(0, 2).extra_keys == (("tenant-a",), None)
    both = TokenChain(range(8), 4, adapter="lora-a", salt="tenant-a").stored_event(0, 2)
    assert (both.lora_name, both.extra_keys) == ("lora-a", (("lora-a", "tenant-a"), ("lora-a",)))
    assert TokenChain(range(8), 4, adapter="lora-a").stored_event(1, 2).extra_keys == (("lora-a",),)
