"""Tokenizing word by word, where a tokenizer does the same: text repeats its words, so most are known already.

Byte-level tokenizers cut text by a regular expression first, and treat each piece alone. In the expressions named here,
no alternative matches a space behind anything but white space, none looks behind, and between them they match every
character. So before such a space there always is a cut, wherever else there are some; and nothing before it depends on
what follows, which, if it begins with a space, can continue no match.
"""

import json
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

EncodeAll: TypeAlias = Callable[[list[str]], Iterable[Sequence[int]]]
"""The token ids of each text."""

MAX_KNOWN_CHARS = 1 << 20  # of all words together; some 20 bytes for each

_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED, _CAPITALS = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}{a}{_LOWER}{b}" for a, b in ("*+", "+*"))
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = frozenset(
    {
        _GPT_2,
        _WORDS + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES,  # GPT-4, Llama 3
        _WORDS + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES,  # Qwen 2 and 3
        rf"{_CASED}{_CONTRACTION}?|{_CAPITALS}{_CONTRACTION}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*"
        + _SPACES,  # GPT-4o, gpt-oss, Llama 4
        rf"{_CASED}|{_CAPITALS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*" + _SPACES,  # Mistral's since Nemo
    }
)
_BEFORE_WORDS = re.compile(r" (?<=\S )")
"""A space behind what is no white space, of which Python knows more kinds than those expressions. Looking back from the
space is twice as fast as looking forward to it."""


class WordTokenizer:
    """Encodes as `encode_all` does, for which `cuts_before_words` must hold. Safe to use from several threads."""

    def __init__(self, encode_all: EncodeAll, max_known_chars: int = MAX_KNOWN_CHARS) -> None:
        self._encode_all = encode_all
        self._max_known_chars = max_known_chars
        self._known: dict[str, bytes] = {}  # a word's token ids, one behind the other
        self._known_chars = 0

    def encode(self, text: str) -> "array[int]":
        first, *others = _BEFORE_WORDS.split(text)
        words = [first, *[" " + word for word in others]]
        known = self._known  # whoever forgets all begins another
        unknown = list(set(words).difference(known))
        if unknown:
            for word, token_ids in zip(unknown, self._encode_all(unknown), strict=True):
                known[word] = array("I", token_ids).tobytes()
        token_ids = array("I", b"".join(map(known.__getitem__, words)))
        self._count(unknown)
        return token_ids

    def _count(self, learned: list[str]) -> None:
        self._known_chars += sum(map(len, learned))
        if self._known_chars > self._max_known_chars:
            self._known, self._known_chars = {}, 0


def cuts_before_words(backend: Any) -> bool:
    """Whether a tokenizer of `tokenizers` always cuts where a space follows what is no white space, and what comes
    before and after it are tokenized alike without each other. Its added tokens are not looked at."""
    parts = json.loads(backend.to_str())
    normalizer, pre_tokenizer = parts["normalizer"], parts["pre_tokenizer"] or {"type": None}
    if normalizer is not None and normalizer["type"] != "NFC":  # it composes nothing with a space
        return False
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    *before, last = steps
    if last["type"] != "ByteLevel" or not all(_is_split(step) or step["type"] == "Digits" for step in before):
        return False
    return bool(last["use_regex"]) or any(map(_is_split, before))


def _is_split(step: dict[str, Any]) -> bool:
    if step["type"] != "Split" or step["invert"] or step["behavior"] != "Isolated":
        return False
    return step["pattern"].get("Regex") in _PATTERNS
