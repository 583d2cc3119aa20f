"""The tokens of one sequence and the chained digests of its full blocks: the keys under which its K/V may be reused."""

from array import array
from collections.abc import Callable, Sequence
from typing import TypeAlias

from kv_events.events import BlockStored
from kv_events.hashing import cache_digests, cache_root, published_hashes

BlockDigests: TypeAlias = Callable[[Sequence[int], int, bytes], list[bytes]]
"""Token ids, block size and the parent's digest to the digest of every full block, as `cache_digests`."""


class TokenChain:
    """Tokens that only ever grow at the end; a full block's digest says the whole prefix up to and with that block.

    `adapter` and `salt` go into the root, so that chains that differ in them never share a digest. Digests are computed
    when first asked for: without prefix caching nothing is ever hashed. Tokens are unsigned and have 32 bits, others
    raise OverflowError.
    """

    def __init__(
        self,
        token_ids: Sequence[int],
        block_size: int,
        adapter: str | None = None,
        salt: str | None = None,
        digest_blocks: BlockDigests = cache_digests,
    ) -> None:
        self.token_ids = array("I", token_ids)
        self.block_size = block_size
        self.adapter = adapter
        self.salt = salt
        self._digest_blocks = digest_blocks
        self._digests: list[bytes] = []

    def __len__(self) -> int:
        return len(self.token_ids)

    def append(self, token_id: int, times: int = 1) -> None:
        self.token_ids.extend(array("I", (token_id,)) * times)

    def digests(self, blocks: int) -> list[bytes]:
        """The digests of the first `blocks` blocks, which must be full."""
        known = len(self._digests)
        if known < blocks:
            parent = self._digests[-1] if known else cache_root(self.adapter, self.salt)
            tokens = self.token_ids[known * self.block_size : blocks * self.block_size]
            self._digests += self._digest_blocks(tokens, self.block_size, parent)
        return self._digests[:blocks]

    def stored_event(self, first: int, last: int) -> BlockStored:
        """The event that announces blocks `first` up to `last` (exclusive), in the form of vLLM 0.32."""
        names = published_hashes(self.digests(last)[max(first - 1, 0) :])
        return BlockStored(
            block_hashes=names[1:] if first else names,
            parent_block_hash=names[0] if first else None,
            token_ids=self.token_ids[first * self.block_size : last * self.block_size],
            block_size=self.block_size,
            lora_name=self.adapter,
            extra_keys=self._all_extra_keys(first, last),
            group_idx=0,
            kv_cache_spec_kind="full_attention",
        )

    def _all_extra_keys(self, first: int, last: int) -> tuple[tuple[object, ...] | None, ...]:
        """What was hashed beside each block's tokens: the adapter everywhere, the salt in the first block only."""
        usual = self._extra_keys(self.adapter)
        keys = (usual,) * (last - first)
        return keys if first else (self._extra_keys(self.adapter, self.salt), *keys[1:])

    @staticmethod
    def _extra_keys(*keys: str | None) -> tuple[object, ...] | None:
        return tuple(key for key in keys if key) or None
