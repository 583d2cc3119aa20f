"""What became of conversations seen before. Which of them a new one continues is found by comparing bytes."""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

MAX_BYTES = 256 << 20
"""Of one cache, as `Conversation.size_bytes` counts: some 4 bytes for each byte of English."""


class Transcript(Protocol):
    """What an encoder made of a conversation, for itself to go on from."""

    @property
    def size_bytes(self) -> int: ...

    def continuable(self, messages: int) -> int:
        """How many of the first `messages` another chat that begins with these may take over; 0: none."""


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """Messages as bytes of a JSON list, and what they became.

    `key` goes from the list's "[" to where the last message ends; each, in the order of `message_ends`, ends there.
    `options` is what else mattered, as JSON; `first_answer` the place of an assistant's first message.
    """

    key: bytes
    message_ends: "array[int]"
    options: bytes
    first_answer: int | None
    transcript: Transcript

    @property
    def size_bytes(self) -> int:
        """An estimate from above."""
        return len(self.key) + 8 * len(self.message_ends) + self.transcript.size_bytes + 1024


class ConversationCache:
    """Keeps the conversations used last, `max_bytes` of them. Safe to use from several threads.

    Sorted by key, those with the longest common prefix are neighbours.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self.size_bytes = 0
        self._keys: list[bytes] = []
        self._conversations: list[Conversation] = []  # of the key in the same place
        self._by_use: OrderedDict[Conversation, None] = OrderedDict()  # the one used last is last
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._keys)

    def longest(self, key: bytes) -> tuple[Conversation, int] | None:
        """The conversation that has the most first messages in common with `key`, and how many."""
        with self._lock:
            place = bisect_right(self._keys, key)
            best, most = None, 0
            for neighbour in self._conversations[max(0, place - 1) : place + 1]:
                common = _common_messages(neighbour, key, most)
                if common > most:
                    best, most = neighbour, common
            if best is None:
                return None
            self._by_use.move_to_end(best)
            return best, most

    def keep(self, conversation: Conversation) -> None:
        """It takes the place of the conversation that it continues."""
        size_bytes = conversation.size_bytes
        if size_bytes > self._max_bytes:
            return
        with self._lock:
            place = bisect_right(self._keys, conversation.key)
            if place and conversation.key.startswith(self._keys[place - 1]):
                self._forget(place - 1)
                place -= 1
            self._keys.insert(place, conversation.key)
            self._conversations.insert(place, conversation)
            self._by_use[conversation] = None
            self.size_bytes += size_bytes
            while self.size_bytes > self._max_bytes:
                self._forget(bisect_left(self._keys, next(iter(self._by_use)).key))

    def _forget(self, place: int) -> None:
        del self._keys[place]
        conversation = self._conversations.pop(place)
        del self._by_use[conversation]
        self.size_bytes -= conversation.size_bytes


def _common_messages(conversation: Conversation, key: bytes, more_than: int) -> int:
    """How many of its first messages `key` begins with; 0 where it is easily seen that there are not `more_than`."""
    ends, known = conversation.message_ends, conversation.key
    if len(ends) <= more_than:
        return 0
    start = ends[more_than - 1] if more_than else 0
    if not key.startswith(known[start : ends[more_than]], start):
        return 0
    if key.startswith(known):
        return len(ends)
    common, end, too_many = 0, 0, len(ends) + 1
    while too_many - common > 1:  # halving, and no byte that is known to agree is compared again
        middle = (common + too_many) // 2
        if key.startswith(known[end : ends[middle - 1]], end):
            common, end = middle, ends[middle - 1]
        else:
            too_many = middle
    return common
