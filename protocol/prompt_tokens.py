"""A prompt as token ids, and the hashes of its blocks, which it shares with the prompts that it continues."""

from array import array
from collections.abc import Callable, Sequence
from typing import TypeAlias, overload

BlockHashes: TypeAlias = Callable[[Sequence[int], int, int], list[int]]
"""Token ids, block size and the parent's hash to the hash of every full block, each chained to the one before."""


class PromptTokens(Sequence[int]):
    """Token ids (unsigned, 32 bits), the first `shared` of which an `earlier` prompt had as well.

    Block hashes are computed when first asked for, from where those of the earlier prompt end. Nobody changes what they
    get here.
    """

    __slots__ = ("_chains", "_earlier_chains", "_shared", "token_ids")

    def __init__(self, token_ids: "array[int]", earlier: "PromptTokens | None" = None, shared: int = 0) -> None:
        self.token_ids = token_ids
        self._shared = shared
        self._chains: dict[tuple[int, int], list[int]] = {}  # by block size and root; few, as one request asks for them
        self._earlier_chains = earlier._chains if earlier else {}

    def __len__(self) -> int:
        return len(self.token_ids)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> "array[int]": ...
    def __getitem__(self, at: int | slice) -> "int | array[int]":
        return self.token_ids[at]

    def block_hashes(self, block_size: int, root: int, hash_blocks: BlockHashes) -> list[int]:
        """The hash of every full block, the first chained to `root`; as `hash_blocks` would give them."""
        chain = self._chains.get((block_size, root))
        if chain is None:
            known = self._earlier_chains.get((block_size, root), [])[: self._shared // block_size]
            rest = self.token_ids[len(known) * block_size :]
            chain = known + hash_blocks(rest, block_size, known[-1] if known else root)
            self._chains[block_size, root] = chain
        return chain
