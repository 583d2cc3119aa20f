import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers
from transformers import PreTrainedTokenizerFast

from protocol.segments import SegmentTokenizer
from tests.protocol.tokenizers import KINDS, TEXTS, make


@pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
@given(texts=st.lists(TEXTS, max_size=4))
def test_the_result_is_the_tokenizers_own(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> None:
    segments = SegmentTokenizer(tokenizer)
    for text in [*texts, *texts]:
        assert list(segments.encode(text).token_ids) == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("tokenizer", KINDS.values(), ids=KINDS)
@given(texts=st.lists(TEXTS, min_size=2, max_size=5), data=st.data())
def test_what_was_extended_is_what_would_have_been_encoded(
    tokenizer: PreTrainedTokenizerFast, texts: list[str], data: st.DataObject
) -> None:
    segments = SegmentTokenizer(tokenizer)
    extended = segments.encode(texts[0])
    for more in texts[1:]:
        kept = data.draw(st.integers(0, len(extended.text)))
        extended = segments.extend(extended, kept, more)
        plain = tokenizer.encode(extended.text, add_special_tokens=False)
        assert list(extended.token_ids) == plain
        again = segments.encode(extended.text)
        assert (extended.cuts, extended.cut_tokens) == (again.cuts, again.cut_tokens)


def test_special_tokens_that_a_tokenizer_takes_for_text_cut_nothing() -> None:
    tokenizer = make(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.split_special_tokens = True
    assert list(SegmentTokenizer(tokenizer).encode("a<b>a").token_ids) == tokenizer.encode("a<b>a")


class Counting:
    """A tokenizer that remembers what it had to encode."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.added_tokens_decoder = tokenizer.added_tokens_decoder
        self.backend_tokenizer = tokenizer.backend_tokenizer
        self._tokenizer = tokenizer
        self.encoded: list[str] = []

    def encode(self, text: str, **options: bool) -> list[int]:
        self.encoded.append(text)
        ids: list[int] = self._tokenizer.encode(text, **options)
        return ids


def test_a_conversation_pays_for_its_newest_turn_only() -> None:
    counting = Counting(KINDS["byte level"])
    segments = SegmentTokenizer(counting)
    segments.encode("<a>hello<b>there")
    segments.encode("<a>hello<b>there<a>more<b>")
    assert counting.encoded == ["hello", "there", "more"]


def test_memory_is_bounded_and_what_was_used_last_stays() -> None:
    counting = Counting(KINDS["byte level"])
    segments = SegmentTokenizer(counting, max_cached_tokens=10)
    segments.encode("123<b>456<b>789")
    segments.encode("123")
    segments.encode("abc")  # the pushed out one is 456
    counting.encoded.clear()
    segments.encode("123<b>789<b>abc")
    assert counting.encoded == []
    segments.encode("456")
    segments.encode("x" * 11)
    segments.encode("x" * 11)
    assert counting.encoded == ["456", "x" * 11, "x" * 11]
