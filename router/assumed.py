"""What a worker is taken to have cached although nothing tells: the prompts that it computed last.

For workers that publish no events, and for prompts that are known as text only (protocol: no tokenizer): then the
router goes by what it sent where. Engines keep what was used last, and so does this, up to a bound.
"""

from collections import OrderedDict
from collections.abc import Sequence


class Assumed:
    """The last prompts of one slot, as the hashes of their blocks. One that continues another stands for both."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[int, Sequence[int]] = OrderedDict()  # by their last block, the oldest first
        self._blocks = 0

    def __len__(self) -> int:
        """Blocks; of prompts that part, what they share counts for each."""
        return self._blocks

    def add(self, hashes: Sequence[int], max_blocks: int) -> list[Sequence[int]]:
        """Add the newest, which has at least one block. Returns those that go for it: what it continues, and the oldest
        ones while all have more than `max_blocks`."""
        gone = [self._prompts.pop(block_hash) for block_hash in hashes if block_hash in self._prompts]
        self._prompts[hashes[-1]] = hashes
        self._blocks += len(hashes) - sum(map(len, gone))
        while self._blocks > max_blocks:
            _, oldest = self._prompts.popitem(last=False)
            self._blocks -= len(oldest)
            gone.append(oldest)
        return gone

    def clear(self) -> list[Sequence[int]]:
        """Returns all that it had."""
        gone = [*self._prompts.values()]
        self._prompts.clear()
        self._blocks = 0
        return gone
