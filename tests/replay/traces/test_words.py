"""Texts agree in their words where prompts agree in their blocks, and nowhere else, and are as long as they should."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from replay.traces.trace import TraceRequest
from replay.traces.words import WORDS, TextExpander
from worker.model_store import resolve

BLOCK_TOKENS = 20
LISTED = WORDS.split()


def request(names: list[int], rest_tokens: int) -> TraceRequest:
    return TraceRequest((len(names) - 1) * BLOCK_TOKENS + rest_tokens, 1, tuple(names))


def test_words_differ_and_all_have_four_letters():
    assert len(set(LISTED)) == len(LISTED) == 256
    assert all(len(word) == 4 and word.isascii() and word.islower() and word.isalpha() for word in LISTED)


NAMES = st.lists(st.integers(0, 2), min_size=1, max_size=5)


@given(NAMES, NAMES, st.integers(1, BLOCK_TOKENS), st.sampled_from([1.0, 1.3, 5.0]), st.integers(0, 3))
def test_words_agree_exactly_where_blocks_do(one, other, rest_tokens, tokens_per_word, seed):
    expander = TextExpander(BLOCK_TOKENS, tokens_per_word, seed)
    block_words = round(BLOCK_TOKENS / tokens_per_word)
    ours, theirs = (expander.text(request(names, rest_tokens)).split() for names in (one, other))
    for block, (name, another) in enumerate(zip(one, other, strict=False)):
        span = slice(block * block_words, (block + 1) * block_words)
        here, there = ours[span], theirs[span]
        shorter = min(len(here), len(there))
        assert name != another or here[:shorter] == there[:shorter]
        assert name == another or shorter < 4 or here[:shorter] != there[:shorter]  # chance: 1 in 256**4


@given(NAMES, st.integers(1, BLOCK_TOKENS), st.sampled_from([1.0, 1.25, 5.0]))
def test_a_text_has_about_the_tokens_that_it_should_have(names, rest_tokens, tokens_per_word):
    text = TextExpander(BLOCK_TOKENS, tokens_per_word).text(request(names, rest_tokens))
    tokens = len(text.split()) * tokens_per_word
    assert abs(tokens - request(names, rest_tokens).input_tokens) <= tokens_per_word
    assert set(text.split()) <= set(LISTED)


def test_another_seed_makes_another_text():
    first, again, other = (TextExpander(BLOCK_TOKENS, 1.0, seed).text(request([7], 20)) for seed in (1, 1, 2))
    assert first == again
    assert first.split()[:4] != other.split()[:4]


def test_a_byte_tokenizer_sees_five_tokens_a_word(tokenizer):
    text = TextExpander(BLOCK_TOKENS, 5.0).text(request([1, 2], 15))
    assert len(tokenizer.encode(text, add_special_tokens=False)) == 35


@pytest.mark.model
def test_a_word_is_one_token_of_a_real_vocabulary():
    smollm2 = AutoTokenizer.from_pretrained(resolve("smollm2-135m"))
    text = TextExpander(BLOCK_TOKENS, 1.0).sample(256)
    assert len(smollm2.encode(text, add_special_tokens=False)) == 256
