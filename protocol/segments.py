"""Tokenizing text most of which was tokenized before, as every next turn of a conversation is.

A tokenizer cuts text at its special tokens first and treats what lies between alone. So segments between special tokens
can be tokenized once and kept, and the result is the tokenizer's own, token for token.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Iterator
from threading import Lock
from typing import Any

MAX_CACHED_TOKENS = 1 << 20  # some 40 bytes each


class SegmentTokenizer:
    """Encodes without adding special tokens. Keeps the segments used last, of `max_cached_tokens` altogether."""

    def __init__(self, tokenizer: Any, max_cached_tokens: int = MAX_CACHED_TOKENS) -> None:
        self._tokenizer = tokenizer
        self._special, self._cuts = _cutting_tokens(tokenizer)
        self._max_cached_tokens = max_cached_tokens
        self._cached_tokens = 0
        self._segments: OrderedDict[str, tuple[int, ...]] = OrderedDict()  # the one used last is last
        self._lock = Lock()

    def encode(self, text: str) -> tuple[int, ...]:
        """The token ids of `text`."""
        token_ids: list[int] = []
        for segment in self._cut(text):
            if segment in self._cuts:
                token_ids.append(self._cuts[segment])
            elif segment:
                token_ids += self._encode_segment(segment)
        return tuple(token_ids)

    def _cut(self, text: str) -> Iterator[str]:
        start = 0
        for match in self._special.finditer(text):
            if match.group() in self._cuts:
                yield text[start : match.start()]
                yield match.group()
                start = match.end()
        yield text[start:]

    def _encode_segment(self, segment: str) -> tuple[int, ...]:
        with self._lock:
            if segment in self._segments:
                self._segments.move_to_end(segment)
                return self._segments[segment]
        token_ids = tuple(self._tokenizer.encode(segment, add_special_tokens=False, verbose=False))
        if len(token_ids) <= self._max_cached_tokens:
            self._keep(segment, token_ids)
        return token_ids

    def _keep(self, segment: str, token_ids: tuple[int, ...]) -> None:
        with self._lock:
            if segment in self._segments:  # another thread was faster
                return
            self._segments[segment] = token_ids
            self._cached_tokens += len(token_ids)
            while self._cached_tokens > self._max_cached_tokens:
                self._cached_tokens -= len(self._segments.popitem(last=False)[1])


def _cutting_tokens(tokenizer: Any) -> tuple[re.Pattern[str], dict[str, int]]:
    """What finds the special tokens as the tokenizer does, leftmost and longest, and those of them that cut cleanly.

    A token that swallows the space beside it, or is found in normalized text only, cuts nothing. Nothing does where a
    segment's tokens depend on whether it comes first.
    """
    added = {token.content: (token_id, token) for token_id, token in tokenizer.added_tokens_decoder.items()}
    found = sorted((content for content, (_, token) in added.items() if not token.normalized), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, found)) or r"(?!)")
    if _depends_on_position(tokenizer):
        return pattern, {}
    clean = (content for content in found if not _swallows(added[content][1]))
    return pattern, {content: added[content][0] for content in clean}


def _swallows(token: Any) -> bool:
    return bool(token.lstrip or token.rstrip or token.single_word)


def _depends_on_position(tokenizer: Any) -> bool:
    """Whether only the first segment of a text gets a leading space, or this is no tokenizer of `tokenizers` at all."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is None or '"first"' in json.dumps(json.loads(backend.to_str())["pre_tokenizer"])
