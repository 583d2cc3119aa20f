from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from worker.detokenizer import MAX_HELD_TOKENS, Detokenizer, StopStrings, WindowDecoder

TEXTS = st.text("aé世🌍👩‍👧 \n▁", max_size=30)


def byte_level() -> PreTrainedTokenizerFast:
    """As GPT-2, Llama 3 and Qwen: every byte is a token, some pairs too."""
    alphabet = ["<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "aa", "Ġa"]
    merges = [("a", "a"), ("Ġ", "a")]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


def sentencepiece() -> PreTrainedTokenizerFast:
    """As Llama 2: a metasymbol for spaces, a leading space that decoding drops, bytes for what has no token."""
    pieces = ["<eos>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "é", "▁a", "aa"]
    merges = [("▁", "a"), ("a", "a")]
    backend = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


KINDS = [byte_level(), sentencepiece()]
each_kind = pytest.mark.parametrize("tokenizer", KINDS, ids=["byte_level", "sentencepiece"])


def pieces(tokenizer: PreTrainedTokenizerFast, token_ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(WindowDecoder(tokenizer))
    return [*map(detokenizer.add, token_ids), detokenizer.finish()]


@each_kind
@given(text=TEXTS)
def test_pieces_make_the_whole_text_and_no_piece_is_broken(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    found = pieces(tokenizer, token_ids)
    assert "".join(found) == tokenizer.decode(token_ids)
    assert not any("�" in piece for piece in found)


@given(st.lists(st.integers(1, 256), max_size=MAX_HELD_TOKENS))
def test_random_bytes_decode_as_a_whole_but_for_a_broken_tail(token_ids: list[int]) -> None:
    tokenizer = byte_level()
    assert "".join(pieces(tokenizer, token_ids)).rstrip("�") == tokenizer.decode(token_ids).rstrip("�")


@each_kind
def test_text_comes_as_soon_as_a_character_is_whole(tokenizer: PreTrainedTokenizerFast) -> None:
    token_ids = tokenizer.encode("a世a", add_special_tokens=False)
    found = [piece for piece in pieces(tokenizer, token_ids) if piece]
    assert found == ["a", "世", "a"]


@each_kind
def test_a_character_that_never_gets_whole_is_left_out(tokenizer: PreTrainedTokenizerFast) -> None:
    token_ids = tokenizer.encode("a世", add_special_tokens=False)
    assert "".join(pieces(tokenizer, token_ids[:-1])) == "a"


@each_kind
def test_special_tokens_are_skipped_unless_wanted(tokenizer: PreTrainedTokenizerFast) -> None:
    token_ids = [*tokenizer.encode("a", add_special_tokens=False), tokenizer.eos_token_id]
    shown = Detokenizer(WindowDecoder(tokenizer), skip_special_tokens=False)
    assert "".join(pieces(tokenizer, token_ids)) == "a"
    assert "".join(map(shown.add, token_ids)) + shown.finish() == "a<eos>"


def test_spaces_between_words_survive_where_decoding_drops_a_leading_one() -> None:
    tokenizer = sentencepiece()
    assert "".join(pieces(tokenizer, tokenizer.encode("a a", add_special_tokens=False))) == "a a"


class CountingTokenizer:
    """Counts the tokens that it has to decode."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.all_special_ids = tokenizer.all_special_ids
        self.decoded = 0
        self._decode: Callable[..., str] = tokenizer.decode

    def decode(self, token_ids: list[int], **options: bool) -> str:
        self.decoded += len(token_ids)
        return self._decode(token_ids, **options)


@each_kind
@pytest.mark.parametrize("text", ["a" * 999, "世" * 333])
def test_cost_is_linear(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    counting = CountingTokenizer(tokenizer)
    pieces(counting, token_ids)  # type: ignore[arg-type]
    assert counting.decoded <= 10 * len(token_ids)


def test_garbage_is_not_held_for_ever() -> None:
    tokenizer = byte_level()
    counting = CountingTokenizer(tokenizer)
    stray = tokenizer.encode("世", add_special_tokens=False)[1]
    found = pieces(counting, [stray] * 1000)  # type: ignore[arg-type]
    assert len("".join(found)) >= 1000 - MAX_HELD_TOKENS
    assert counting.decoded <= 3 * MAX_HELD_TOKENS * 1000


def stopped(stop: tuple[str, ...], chunks: list[str], keep_stop: bool = False) -> tuple[str, str | None]:
    strings = StopStrings(stop, keep_stop=keep_stop)
    text = ""
    for chunk in chunks:
        text += strings.add(chunk)
        if strings.found is not None:
            return text, strings.found
    return text + strings.finish(), None


@pytest.mark.parametrize(
    ("stop", "text", "expected"),
    [
        ((), "hello", ("hello", None)),
        (("xyz",), "hello", ("hello", None)),
        (("ll",), "hello", ("he", "ll")),
        (("h",), "hello", ("", "h")),
        (("lo!",), "hello", ("hello", None)),
        (("lo", "ell"), "hello", ("h", "ell")),
        (("abcd", "bc"), "abcd", ("a", "bc")),
        (("bc", "abc"), "abc", ("a", "bc")),
        (("aab",), "aaab", ("a", "aab")),
        (("世界",), "a世界b", ("a", "世界")),
    ],
)
def test_stop_strings(stop: tuple[str, ...], text: str, expected: tuple[str, str | None]) -> None:
    assert stopped(stop, [text]) == expected
    assert stopped(stop, list(text)) == expected


def test_the_stop_string_stays_when_asked_for() -> None:
    assert stopped(("ll",), ["hel", "lo"], keep_stop=True) == ("hell", "ll")


@settings(max_examples=300)
@given(st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(st.text("ab", max_size=4), max_size=8))
def test_any_cutting_of_the_text_stops_at_the_same_place(stop: list[str], chunks: list[str]) -> None:
    text = "".join(chunks)
    ends = sorted(end for end in range(1, len(text) + 1) if text[:end].endswith(tuple(stop)))
    found, which = stopped(tuple(stop), chunks)
    if not ends or not stop:
        assert (found, which) == (text, None)
    else:
        assert which in stop
        assert found + which == text[: ends[0]]


def test_no_more_is_held_back_than_may_begin_a_stop_string() -> None:
    strings = StopStrings(("</s>",))
    assert strings.add("a<") == "a"
    assert strings.add("b</") == "<b"
    assert strings.add("s") == ""
    assert strings.add("x") == "</sx"
