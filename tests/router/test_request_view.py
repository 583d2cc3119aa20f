"""Keys and popularity of prefixes, as policies see them."""

from random import Random

import pytest

from kv_events.hashing import block_hashes
from policies.views import SHARE_WINDOW
from router.request_view import HEAD_TOKENS, PrefixShares, head_key, session_key


def key_of(prompt: list[int], root: int = 5, block_size: int = 64) -> int:
    return head_key(prompt, block_hashes(prompt, block_size, root), block_size, root)


def test_head_key_is_of_the_head_s_whole_blocks_and_the_root() -> None:
    prompt = list(range(HEAD_TOKENS))
    assert key_of([*prompt, *range(64)]) == key_of([*prompt, *range(1, 65)])
    assert key_of(prompt) != key_of(prompt, root=6)
    assert key_of([*prompt[:-1], 0]) != key_of(prompt)
    assert key_of(prompt[:100]) == key_of(prompt[:64]) != key_of(prompt)


def test_head_key_of_less_than_a_block() -> None:
    assert key_of([1, 2]) != key_of([1, 3])
    assert key_of([1, 2]) != key_of([1, 2], root=6)
    assert key_of([*range(HEAD_TOKENS), 1], block_size=512) == key_of([*range(HEAD_TOKENS), 2], block_size=512)
    assert key_of([]) == 5


def test_session_keys_tell_sessions_apart() -> None:
    assert session_key("a") == session_key("a") != session_key("b")
    assert 0 <= session_key("\ud800") < 1 << 64, "whatever a client puts in its JSON"


def test_prefixes_double() -> None:
    shares = PrefixShares()
    assert [(each.key, each.tokens) for each in shares.of(range(100, 109), 16)] == [
        (100, 16),
        (101, 32),
        (103, 64),
        (107, 128),
    ]
    assert list(shares.of([], 16)) == []


def test_shares_are_of_the_last_requests_this_one_included() -> None:
    shares, rng, history = PrefixShares(), Random(0), []
    for _ in range(3 * SHARE_WINDOW):
        hashes = [rng.randrange(3), 10 + rng.randrange(9)]
        [first, second] = shares.of(hashes, 4)
        recent = [*history[-(SHARE_WINDOW - 1) :], hashes]
        assert first.share == sum(each[0] == hashes[0] for each in recent) / SHARE_WINDOW
        assert second.share == sum(each[1] == hashes[1] for each in recent) / SHARE_WINDOW
        shares.add(hashes)
        history.append(hashes)


@pytest.mark.parametrize("unasked", [1, SHARE_WINDOW // 2, 3 * SHARE_WINDOW])
def test_shares_are_the_same_however_seldom_they_are_asked_for(unasked: int) -> None:
    asked, seldom, rng = PrefixShares(), PrefixShares(), Random(0)
    for number in range(4 * SHARE_WINDOW):
        hashes = [rng.randrange(3), 10 + rng.randrange(9)]
        shares = list(asked.of(hashes, 4))
        if number % unasked == 0:
            assert list(seldom.of(hashes, 4)) == shares
        asked.add(hashes)
        seldom.add(hashes)
