"""Blocks that are expected on a slot, because a prompt that has them was sent there: from then until it ends.

Engines announce a block with the step that computes it. Without leases, requests for one prefix that come meanwhile
would each find it nowhere and scatter.
"""

from collections.abc import Sequence


class Leases:
    """Counted: each `add` is taken back by one `end` of the same. Holds one entry for each block of prompts in flight,
    and one more for each slot that expects it from several of them."""

    def __init__(self) -> None:
        self.slots_of: dict[int, int] = {}
        """Block hash -> the slots that expect it, as a mask. For looking only."""
        self._more: dict[int, dict[int, int]] = {}  # slot -> block hash -> leases beyond the first

    def __len__(self) -> int:
        return len(self.slots_of)

    def add(self, slot: int, hashes: Sequence[int]) -> None:
        slots_of, more, bit = self.slots_of, self._more.setdefault(slot, {}), 1 << slot
        for block_hash in hashes:
            slots = slots_of.get(block_hash, 0)
            if slots & bit:
                more[block_hash] = more.get(block_hash, 0) + 1
            else:
                slots_of[block_hash] = slots | bit

    def end(self, slot: int, hashes: Sequence[int]) -> None:
        slots_of, more, bit = self.slots_of, self._more[slot], 1 << slot
        for block_hash in hashes:
            if block_hash in more:
                more[block_hash] -= 1
                if not more[block_hash]:
                    del more[block_hash]
                continue
            slots = slots_of[block_hash] ^ bit
            if slots:
                slots_of[block_hash] = slots
            else:
                del slots_of[block_hash]

    def check(self) -> None:
        """Raise AssertionError unless the counts belong to what is leased."""
        for slot, more in self._more.items():
            assert all(count > 0 and self.slots_of[block_hash] >> slot & 1 for block_hash, count in more.items())
