"""What became of conversations seen before. Which of them a new one continues is found by comparing bytes."""

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

from protocol.prompt_tokens import PromptTokens
from protocol.segments import TokenizedText

MAX_BYTES = 256 << 20
"""Of one cache, as `Conversation.size_bytes` counts: some 4 bytes for each byte of English."""


@dataclass(frozen=True, slots=True, eq=False)
class Conversation:
    """Messages in canonical form, and what they became.

    Message i ends at byte `message_ends[i]` of `key` and, printed, at character `text_ends[i]` of the text. Where the
    last one may yet be printed differently, it has no place in these.
    """

    key: bytes
    message_ends: "array[int]"
    text_ends: "array[int]"
    text: TokenizedText
    prompt: PromptTokens

    @property
    def size_bytes(self) -> int:
        """An estimate from above, with the hashes of blocks of 16 tokens."""
        return len(self.key) + self.text.size_bytes + 16 * len(self.message_ends) + 4 * len(self.prompt) + 1024


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
            found = [(each, _common_messages(each, key)) for each in self._conversations[max(0, place - 1) : place + 1]]
            best = max(found, key=lambda each: each[1], default=None)
            if best is None or not best[1]:
                return None
            self._by_use.move_to_end(best[0])
            return best

    def keep(self, conversation: Conversation) -> None:
        """It takes the place of the conversation that it continues."""
        if conversation.size_bytes > self._max_bytes:
            return
        with self._lock:
            place = bisect_right(self._keys, conversation.key)
            if place and conversation.key.startswith(self._keys[place - 1]):
                self._forget(place - 1)
                place -= 1
            self._keys.insert(place, conversation.key)
            self._conversations.insert(place, conversation)
            self._by_use[conversation] = None
            self.size_bytes += conversation.size_bytes
            while self.size_bytes > self._max_bytes:
                self._forget(bisect_left(self._keys, next(iter(self._by_use)).key))

    def _forget(self, place: int) -> None:
        del self._keys[place]
        conversation = self._conversations.pop(place)
        del self._by_use[conversation]
        self.size_bytes -= conversation.size_bytes


def _common_messages(conversation: Conversation, key: bytes) -> int:
    """How many of its first messages `key` begins with."""
    ends, known = conversation.message_ends, conversation.key
    if key.startswith(known):
        return len(ends)
    common, end, too_many = 0, 0, len(ends) + 1
    while too_many - common > 1:  # halving, and no byte that is known to agree is compared again
        middle = (common + too_many) // 2
        if key[end : ends[middle - 1]] == known[end : ends[middle - 1]]:
            common, end = middle, ends[middle - 1]
        else:
            too_many = middle
    return common
