"""What a policy gets to see of a request, beyond its length: keys, and how popular its prefixes are of late."""

from collections import Counter, deque
from collections.abc import Sequence
from typing import overload

from xxhash import xxh3_64_intdigest

from kv_events.hashing import block_hashes
from policies.views import SHARE_WINDOW, PrefixShare

HEAD_TOKENS = 256


def head_key(token_ids: Sequence[int], hashes: Sequence[int], block_size: int, root: int) -> int:
    """The hash of the whole blocks in a prompt's first HEAD_TOKENS tokens. Where there are none: of these tokens, or
    `root`."""
    if blocks := min(HEAD_TOKENS // block_size, len(hashes)):
        return hashes[blocks - 1]
    head = token_ids[:HEAD_TOKENS]
    return block_hashes(head, len(head), root)[0] if head else root


def session_key(session: str) -> int:
    return xxh3_64_intdigest(session.encode("utf-8", "surrogatepass"))


class PrefixShares:
    """Holds the keys of the last SHARE_WINDOW - 1 requests: a prefix of 1, 2, 4, 8, ... blocks of each has one.

    They are counted when a policy asks for a share: most do not.
    """

    def __init__(self) -> None:
        self._uncounted: deque[list[int]] = deque(maxlen=SHARE_WINDOW - 1)
        self._counted: deque[list[int]] = deque()  # as long at most
        self._counts: Counter[int] = Counter()

    def of(self, hashes: Sequence[int], block_size: int) -> Sequence[PrefixShare]:
        """The prefixes of a prompt with these block hashes, as if it were the newest request. Good until the next
        `add`."""
        return _Prefixes(self, hashes, block_size)

    def share(self, key: int) -> float:
        """Of the last SHARE_WINDOW requests, as if the newest had this key."""
        while self._uncounted:
            self._count(self._uncounted.popleft())
        return (self._counts[key] + 1) / SHARE_WINDOW

    def add(self, hashes: Sequence[int]) -> None:
        self._uncounted.append([hashes[(1 << i) - 1] for i in range(len(hashes).bit_length())])

    def _count(self, keys: list[int]) -> None:
        self._counted.append(keys)
        self._counts.update(keys)
        if len(self._counted) == SHARE_WINDOW:
            for key in self._counted.popleft():
                self._counts[key] -= 1
                if not self._counts[key]:
                    del self._counts[key]


class _Prefixes(Sequence[PrefixShare]):
    __slots__ = ("_block_size", "_hashes", "_shares")

    def __init__(self, shares: PrefixShares, hashes: Sequence[int], block_size: int) -> None:
        self._shares, self._hashes, self._block_size = shares, hashes, block_size

    def __len__(self) -> int:
        return len(self._hashes).bit_length()

    @overload
    def __getitem__(self, at: int) -> PrefixShare: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[PrefixShare]: ...
    def __getitem__(self, at: int | slice) -> PrefixShare | Sequence[PrefixShare]:
        if isinstance(at, slice):
            return [self[i] for i in range(len(self))[at]]
        i = range(len(self))[at]
        key = self._hashes[(1 << i) - 1]
        return PrefixShare(key, self._block_size << i, self._shares.share(key))
