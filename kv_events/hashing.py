"""How we name blocks: a chained hash, in which a block's name says the whole prefix that ends with it.

There are two, because they answer two questions.

The router asks "which worker may hold this prefix?", of every prompt, about engines that each name blocks in a way of
their own, often one that cannot be computed from the event (vLLM hashes the path of a LoRA adapter, and publishes its
name). So it names blocks itself, from their tokens, with xxh3: 56 us for 8192 tokens in blocks of 16, or 115 us when
they come as a list or tuple, not an array. Someone who makes two prompts collide gets a request placed badly.

The worker asks "may I reuse these tensors?". A collision there answers one tenant with another's context, so its cache
is keyed by a SHA-256 chain, with a fixed seed so that all workers name a block alike. What it publishes is the low 64
bits of the digest, as vLLM does: a name to be compared, never a key to its tensors.

Both cover full blocks only, and take the adapter and the cache salt into the root, from where they reach every block.
"""

import struct
from array import array
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import cast

import msgpack
import numpy as np
from xxhash import xxh3_64_intdigest

from kv_events.events import BlockStored

_WORD = np.dtype(">u8")
_SEED = 0x7761726D726F7574  # "warmrout": any constant would do, but a fixed one
_PREFIX_CACHE_KINDS = frozenset({None, "full_attention", "mla_attention"})


class UnmappableEvent(ValueError):
    """A stored event says nothing about text prefixes that our hashes could name. The message says why."""


def root_hash(adapter: str | None = None, salt: str | None = None) -> int:
    """The parent of a prompt's first block (unsigned 64-bit), one for each adapter and salt. An empty salt is none."""
    return _mixed(_SEED, (adapter, salt or None))


def block_hashes(token_ids: Sequence[int], block_size: int, parent: int) -> list[int]:
    """Our hash of every full block of `token_ids`, each chained to the one before it, the first to `parent`.

    A hash is xxh3_64 of the block's tokens, four little-endian bytes each, seeded with the parent's hash. Raises
    OverflowError for a token beyond 32 bits.
    """
    return [parent := xxh3_64_intdigest(block, parent) for (block,) in _blocks(token_ids, block_size)]


def stored_hashes(event: BlockStored, parent: int | None) -> list[int]:
    """Our hashes of the blocks of a stored event, one for each of its `block_hashes`.

    `parent` is our hash of `event.parent_block_hash`, None exactly when that is None: then the root follows from the
    event's adapter and salt. A block hashed beside anything else (an image, prompt embeddings) gets a name that no text
    prompt has. Raises UnmappableEvent.
    """
    assert (parent is None) == (event.parent_block_hash is None), "the parent's hash belongs to an event with a parent"
    _check_mappable(event)
    salt, extras = _salt_and_extras(event)
    if parent is None:
        parent = root_hash(event.lora_name, salt)
    try:
        if not any(extras):
            return block_hashes(event.token_ids, event.block_size, parent)
        return _hashes_with_extras(event, extras, parent)
    except (OverflowError, TypeError, ValueError, struct.error) as error:  # beyond 32 bits, or nested too deep to pack
        raise UnmappableEvent(f"tokens or extra keys cannot be hashed: {error}") from error


def cache_root(adapter: str | None = None, salt: str | None = None) -> bytes:
    """The parent digest (32 bytes) of a prompt's first block in a worker's cache. An empty salt is none."""
    return sha256(_packed(("warmroute", adapter, salt or None))).digest()


def cache_digests(token_ids: Sequence[int], block_size: int, parent: bytes) -> list[bytes]:
    """A worker's cache key (32 bytes) of every full block: SHA-256 of the parent's digest and the block's tokens."""
    digests = []
    for (block,) in _blocks(token_ids, block_size):
        parent = sha256(parent + block).digest()
        digests.append(parent)
    return digests


def published_hash(digest: bytes) -> int:
    """The name under which a worker publishes a block: the digest's low 64 bits, big-endian, unsigned, as vLLM 0.32."""
    return int.from_bytes(digest[-8:], "big")


def published_hashes(digests: Sequence[bytes]) -> tuple[int, ...]:
    """The names of many blocks, whose digests are equally long, in words of eight bytes: five times as fast."""
    if not digests:
        return ()
    words = len(digests[0]) // 8
    return tuple(np.frombuffer(b"".join(digests), _WORD)[words - 1 :: words].tolist())


def _blocks(token_ids: Sequence[int], block_size: int) -> Iterator[tuple[bytes]]:
    """Each full block, four bytes a token in the machine's byte order (little-endian wherever PyTorch runs)."""
    tokens = token_ids if isinstance(token_ids, array) and token_ids.typecode == "I" else array("I", token_ids)
    data = memoryview(tokens).cast("B")
    stride = 4 * block_size
    return struct.iter_unpack(f"{stride}s", data[: len(data) // stride * stride])


def _packed(keys: tuple[object, ...]) -> bytes:
    return cast(bytes, msgpack.packb(keys, unicode_errors="surrogatepass"))


def _mixed(parent: int, keys: tuple[object, ...]) -> int:
    return xxh3_64_intdigest(_packed(keys), parent)


def _check_mappable(event: BlockStored) -> None:
    blocks, tokens = len(event.block_hashes), len(event.token_ids)
    if event.kv_cache_spec_kind not in _PREFIX_CACHE_KINDS or event.kv_cache_spec_sliding_window is not None:
        raise UnmappableEvent(f"a {event.kv_cache_spec_kind} cache does not hold whole prefixes")
    if event.block_size <= 0 or tokens != blocks * event.block_size:
        raise UnmappableEvent(f"{tokens} tokens are not {blocks} blocks of {event.block_size}")
    if event.extra_keys is not None and len(event.extra_keys) != blocks:
        raise UnmappableEvent(f"{len(event.extra_keys)} entries of extra keys for {blocks} blocks")
    if event.lora_id is not None and event.lora_name is None:
        raise UnmappableEvent(f"adapter {event.lora_id} has no name")


def _salt_and_extras(event: BlockStored) -> tuple[str | None, list[tuple[object, ...]]]:
    """The salt, and for each block what was hashed beside its tokens, adapter and salt (empty when nothing ever was).

    vLLM lists a block's keys as adapter name, multimodal pairs, salt (a prompt's first block only), embeddings digest.
    """
    if event.extra_keys is None or not any(event.extra_keys):
        return event.cache_salt, []
    extras = [_without_adapter(keys or (), event.lora_name) for keys in event.extra_keys]
    if event.parent_block_hash is not None:
        return None, extras
    salt = event.cache_salt or next((key for key in extras[0] if isinstance(key, str)), None)
    extras[0] = tuple(key for key in extras[0] if key != salt)
    return salt, extras


def _without_adapter(keys: tuple[object, ...], adapter: str | None) -> tuple[object, ...]:
    return keys[1:] if adapter is not None and keys[:1] == (adapter,) else keys


def _hashes_with_extras(event: BlockStored, extras: list[tuple[object, ...]], parent: int) -> list[int]:
    """Block by block: one with extra keys hangs from a side root, mixed from them and its parent."""
    hashes = []
    for index, keys in enumerate(extras):
        tokens = event.token_ids[index * event.block_size : (index + 1) * event.block_size]
        [parent] = block_hashes(tokens, event.block_size, _mixed(parent, keys) if keys else parent)
        hashes.append(parent)
    return hashes
