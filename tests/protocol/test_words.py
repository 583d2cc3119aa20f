"""Word by word must give what the tokenizer makes of the whole text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from protocol.words import WordTokenizer, cuts_before_words

GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace("{1,3}", "")
GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MISTRAL = GPT_4O.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "").replace("{1,3}", "")
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def split(pattern: str, behavior: str = "isolated", invert: bool = False) -> Any:
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


KINDS: dict[str, tuple[Any, Any]] = {
    "byte level": (pre_tokenizers.ByteLevel(add_prefix_space=False), None),
    "leading space": (pre_tokenizers.ByteLevel(add_prefix_space=True), None),
    "digits": (pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)]), None),
    "GPT-2": (pre_tokenizers.Sequence([split(GPT_2), BYTES]), None),
    "Llama 3": (pre_tokenizers.Sequence([split(LLAMA_3), BYTES]), None),
    "Qwen 2": (pre_tokenizers.Sequence([split(QWEN_2), BYTES]), normalizers.NFC()),
    "GPT-4o": (pre_tokenizers.Sequence([split(GPT_4O), BYTES]), None),
    "Mistral": (pre_tokenizers.Sequence([split(MISTRAL), BYTES]), None),
}
OTHERS: dict[str, tuple[Any, Any]] = {
    "nothing cuts": (BYTES, None),
    "only digits are cut off": (pre_tokenizers.Sequence([pre_tokenizers.Digits(), BYTES]), None),
    "no pre-tokenizer": (None, None),
    "metaspace": (pre_tokenizers.Metaspace(), None),
    "another pattern": (pre_tokenizers.Sequence([split(r"\p{L}+ \p{L}+"), BYTES]), None),
    "what the pattern leaves": (pre_tokenizers.Sequence([split(GPT_2, invert=True), BYTES]), None),
    "pieces put together again": (pre_tokenizers.Sequence([split(GPT_2, "merged_with_next"), BYTES]), None),
    "a normalizer": (pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Strip()),
}
PIECES = ["a", "aa", "A", "é", "e\u0301", "\u0301", "世", "1", "22", "'s", "'", ".", "/", " ", "  ", "\n", "\r\n", "\t"]
ODD = ["\u00a0", "\u180e", "\u200b", "\u3000", "\x1c", "\x85", "🌍", "\u2001", "ſ", "\0"]
TEXTS = st.lists(st.sampled_from([*PIECES, *PIECES, *ODD, " a", " a", " A", " ."]), max_size=25).map("".join)


def backend(pre_tokenizer: Any, normalizer: Any) -> Tokenizer:
    """Byte-level BPE that would merge over any cut it is not kept from."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "Ġ"), (".", "Ġ"), ("a", "a"), ("Ġ", "a"), ("Ġ", "Ġ"), ("1", "Ġ"), ("Ċ", "Ġ")]
    vocabulary = [*alphabet, *(first + second for first, second in merges)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, merges))
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def by_words(tokenizer: Tokenizer, **options: int) -> WordTokenizer:
    return WordTokenizer(lambda texts: [each.ids for each in tokenizer.encode_batch_fast(texts)], **options)


@pytest.mark.parametrize("kind", KINDS)
@given(texts=st.lists(TEXTS | st.text(), max_size=5))
def test_the_result_is_the_tokenizers_own(kind: str, texts: list[str]) -> None:
    tokenizer = backend(*KINDS[kind])
    assert cuts_before_words(tokenizer)
    words = by_words(tokenizer)
    for text in [*texts, " ".join(texts), *texts]:
        assert list(words.encode(text)) == tokenizer.encode(text).ids


@pytest.mark.parametrize("kind", OTHERS)
def test_tokenizers_that_may_join_words_are_told_apart(kind: str) -> None:
    assert not cuts_before_words(backend(*OTHERS[kind]))


def test_a_word_is_tokenized_once_until_too_many_are_known() -> None:
    asked: list[list[str]] = []

    def encode_all(texts: list[str]) -> list[list[int]]:
        asked.append(sorted(texts))
        return [[len(text)] for text in texts]

    words = WordTokenizer(encode_all, max_known_chars=12)
    assert list(words.encode("one two one two")) == [3, 4, 4, 4]
    words.encode("one two")
    assert asked == [[" one", " two", "one"]]
    words.encode("three")
    words.encode("one two")
    assert asked[1:] == [["three"], [" two", "one"]]
