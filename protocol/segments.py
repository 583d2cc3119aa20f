"""Tokenizing text most of which was tokenized before, as every next turn of a conversation is.

A tokenizer cuts text at its special tokens first and treats what lies between alone. So segments between special tokens
can be tokenized once and kept, and the result is the tokenizer's own, token for token.
"""

import json
import re
import sys
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

from protocol.words import WordTokenizer, cuts_before_words

MAX_CACHED_TOKENS = 1 << 20  # some 10 bytes each, with their text


class TokenizedText(NamedTuple):
    """A text, its token ids (unsigned, 32 bits), and where it may be cut: at the characters `cuts`, which rise from 0;
    of the tokens, `cut_tokens` of the same place are before the cut. `taken_over` counts those of an earlier text."""

    text: str
    token_ids: "array[int]"
    cuts: "array[int]"
    cut_tokens: "array[int]"
    taken_over: int = 0

    @property
    def size_bytes(self) -> int:
        return sys.getsizeof(self.text) + 4 * len(self.token_ids) + 16 * len(self.cuts)


class SegmentTokenizer:
    """Encodes without adding special tokens. Keeps the segments used last, of `max_cached_tokens` altogether."""

    def __init__(self, tokenizer: Any, max_cached_tokens: int = MAX_CACHED_TOKENS) -> None:
        self._special, self._cuts = _cutting_tokens(tokenizer)
        self._encode_new = _encoding(tokenizer, no_added_tokens=len(self._cuts) == len(tokenizer.added_tokens_decoder))
        self._longest_special = max(
            (len(token.content) for token in tokenizer.added_tokens_decoder.values()), default=0
        )
        self._max_cached_tokens = max_cached_tokens
        self._cached_tokens = 0
        self._segments: OrderedDict[str, array[int]] = OrderedDict()  # the one used last is last
        self._lock = Lock()

    def encode(self, text: str) -> TokenizedText:
        return self._encode_from(text, 0, array("I"), array("Q", (0,)), array("Q", (0,)))

    def extend(self, earlier: TokenizedText, chars: int, more: str) -> TokenizedText:
        """The same as encoding the first `chars` characters of `earlier` with `more` behind them.

        Goes on from the last cut whose special token would be found there whatever follows.
        """
        cut = max(0, bisect_right(earlier.cuts, chars - self._longest_special) - 1)
        token_ids = earlier.token_ids[: earlier.cut_tokens[cut]]
        cuts, cut_tokens = earlier.cuts[: cut + 1], earlier.cut_tokens[: cut + 1]
        return self._encode_from(earlier.text[:chars] + more, cuts[-1], token_ids, cuts, cut_tokens)

    def _encode_from(
        self, text: str, start: int, token_ids: "array[int]", cuts: "array[int]", cut_tokens: "array[int]"
    ) -> TokenizedText:
        """Appends to the arrays what comes from the character `start` on."""
        taken_over = len(token_ids)
        for match in self._special.finditer(text, start):
            special = self._cuts.get(match.group())
            if special is None:
                continue
            if match.start() > start:
                token_ids.extend(self._encode_segment(text[start : match.start()]))
            if match.start() > cuts[-1]:
                cuts.append(match.start())
                cut_tokens.append(len(token_ids))
            token_ids.append(special)
            start = match.end()
        if start < len(text):
            token_ids.extend(self._encode_segment(text[start:]))
        return TokenizedText(text, token_ids, cuts, cut_tokens, taken_over)

    def _encode_segment(self, segment: str) -> "array[int]":
        with self._lock:
            if segment in self._segments:
                self._segments.move_to_end(segment)
                return self._segments[segment]
        token_ids = self._encode_new(segment)
        if len(token_ids) <= self._max_cached_tokens:
            self._keep(segment, token_ids)
        return token_ids

    def _keep(self, segment: str, token_ids: "array[int]") -> None:
        with self._lock:
            if segment in self._segments:  # another thread was faster
                return
            self._segments[segment] = token_ids
            self._cached_tokens += len(token_ids)
            while self._cached_tokens > self._max_cached_tokens:
                self._cached_tokens -= len(self._segments.popitem(last=False)[1])


def _encoding(tokenizer: Any, no_added_tokens: bool) -> Callable[[str], "array[int]"]:
    """The tokenizer's `encode` that adds no special tokens, or something faster that gives the same.

    `no_added_tokens`: there are none in what it will encode.
    """
    from transformers import PreTrainedTokenizerFast  # not before a tokenizer is loaded: see prompts.py

    if getattr(type(tokenizer), "_encode_plus", None) is not PreTrainedTokenizerFast._encode_plus:
        return lambda text: array("I", tokenizer.encode(text, add_special_tokens=False, verbose=False))
    tokenizer.encode("", add_special_tokens=False)  # turns truncation and padding off, as any later one would
    backend = tokenizer.backend_tokenizer

    def encode_all(texts: list[str]) -> list[list[int]]:  # without offsets
        return [each.ids for each in backend.encode_batch_fast(texts, add_special_tokens=False)]

    if no_added_tokens and cuts_before_words(backend):
        return WordTokenizer(encode_all).encode
    return lambda text: array("I", encode_all([text])[0])


def _cutting_tokens(tokenizer: Any) -> tuple[re.Pattern[str], dict[str, int]]:
    """What finds the special tokens as the tokenizer does, leftmost and longest, and those of them that cut cleanly.

    A token that swallows the space beside it, or is found in normalized text only, cuts nothing. Nothing does where a
    segment's tokens depend on whether it comes first, or where special tokens are text as any other.
    """
    added = {token.content: (token_id, token) for token_id, token in tokenizer.added_tokens_decoder.items()}
    found = sorted((content for content, (_, token) in added.items() if not token.normalized), key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, found)) or r"(?!)")
    if _depends_on_position(tokenizer) or getattr(tokenizer, "split_special_tokens", False):
        return pattern, {}
    clean = (content for content in found if not _swallows(added[content][1]))
    return pattern, {content: added[content][0] for content in clean}


def _swallows(token: Any) -> bool:
    return bool(token.lstrip or token.rstrip or token.single_word)


def _depends_on_position(tokenizer: Any) -> bool:
    """Whether only the first segment of a text gets a leading space, or this is no tokenizer of `tokenizers` at all."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is None or '"first"' in json.dumps(json.loads(backend.to_str())["pre_tokenizer"])
