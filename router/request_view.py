"""What a policy gets to see of a request, beyond its length: keys, and how popular its prefixes are of late."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import overload

from xxhash import xxh3_64_intdigest

from kv_events.hashing import block_hashes
from policies.views import SHARE_WINDOW, PrefixShare

HEAD_TOKENS = 256


def head_key(token_ids: Sequence[int], root: int) -> int:
    """The hash of a prompt's first HEAD_TOKENS tokens, or of all of a shorter one; `root` of an empty one."""
    head = token_ids[:HEAD_TOKENS]
    return block_hashes(head, len(head), root)[0] if head else root


def session_key(session: str) -> int:
    return xxh3_64_intdigest(session.encode("utf-8", "surrogatepass"))


class PrefixShares:
    """Holds the keys of the last SHARE_WINDOW - 1 requests: a prefix of 1, 2, 4, 8, ... blocks of each has one."""

    def __init__(self) -> None:
        self._recent: deque[list[int]] = deque()
        self._counts: Counter[int] = Counter()

    def of(self, hashes: Sequence[int], block_size: int) -> Sequence[PrefixShare]:
        """The prefixes of a prompt with these block hashes, as if it were the newest request. Good until the next
        `add`."""
        return _Prefixes(self._counts, hashes, block_size)

    def add(self, hashes: Sequence[int]) -> None:
        keys = _keys(hashes)
        self._recent.append(keys)
        self._counts.update(keys)
        if len(self._recent) == SHARE_WINDOW:
            for key in self._recent.popleft():
                self._counts[key] -= 1
                if not self._counts[key]:
                    del self._counts[key]


class _Prefixes(Sequence[PrefixShare]):
    """Looked up when a policy asks: most do not."""

    def __init__(self, counts: Mapping[int, int], hashes: Sequence[int], block_size: int) -> None:
        self._counts, self._hashes, self._block_size = counts, hashes, block_size

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
        return PrefixShare(key, self._block_size << i, (self._counts.get(key, 0) + 1) / SHARE_WINDOW)


def _keys(hashes: Sequence[int]) -> list[int]:
    return [hashes[(1 << i) - 1] for i in range(len(hashes).bit_length())]
