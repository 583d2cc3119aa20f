from array import array
from dataclasses import dataclass
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from protocol.conversation_cache import Conversation, ConversationCache

MESSAGES = st.lists(st.sampled_from([b"{}", b"{a}", b"{ab}", b"{b}"]), min_size=1, max_size=6)


@dataclass(frozen=True)
class Text:
    size_bytes: int = 0

    def continuable(self, messages: int) -> int:
        return messages


def conversation(messages: list[bytes], text_bytes: int = 0) -> Conversation:
    ends = array("Q", accumulate((1 + len(each) for each in messages), initial=0))[1:]
    return Conversation(key(messages), ends, b"[]", None, Text(text_bytes))


def key(messages: list[bytes]) -> bytes:
    return b"[" + b",".join(messages)


def common(first: list[bytes], second: list[bytes]) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(map(len, (first, second)))
    )


@given(kept=st.lists(MESSAGES, max_size=12), asked=MESSAGES)
def test_finds_the_most_messages_that_any_has_in_common(kept: list[list[bytes]], asked: list[bytes]) -> None:
    cache = ConversationCache()
    for messages in kept:
        cache.keep(conversation(messages))
    found = cache.longest(key(asked))
    assert (found[1] if found else 0) == max((common(messages, asked) for messages in kept), default=0)


def test_a_conversation_replaces_the_one_that_it_continues() -> None:
    cache = ConversationCache()
    cache.keep(conversation([b"{a}"]))
    cache.keep(conversation([b"{a}", b"{b}"]))
    cache.keep(conversation([b"{a}", b"{b}"]))
    assert len(cache) == 1
    cache.keep(conversation([b"{b}"]))
    assert len(cache) == 2
    assert cache.size_bytes == conversation([b"{a}", b"{b}"]).size_bytes + conversation([b"{b}"]).size_bytes


@given(kept=st.lists(MESSAGES, max_size=30))
def test_holds_no_more_than_it_may(kept: list[list[bytes]]) -> None:
    cache = ConversationCache(max_bytes=5000)
    for messages in kept:
        cache.keep(conversation(messages))
        assert cache.size_bytes <= 5000
        assert cache.longest(key(messages)) is not None


def test_what_was_used_last_stays_and_what_is_too_large_is_not_kept() -> None:
    size = conversation([b"{a}"]).size_bytes
    cache = ConversationCache(max_bytes=2 * size)
    cache.keep(conversation([b"{a}"]))
    cache.keep(conversation([b"{b}"]))
    cache.longest(key([b"{a}"]))
    cache.keep(conversation([b"{c}"]))
    cache.keep(conversation([b"{d}"], text_bytes=2 * size))
    assert [cache.longest(key([each])) is not None for each in (b"{a}", b"{b}", b"{c}", b"{d}")] == [1, 0, 1, 0]
