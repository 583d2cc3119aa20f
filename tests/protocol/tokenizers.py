"""Tokenizers of every kind, with added tokens of every kind, and text that mixes those up."""

from typing import Any

from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<a>", "<a>a", "<b>", "<strip>", "<norm>"]
TEXTS = st.lists(st.sampled_from([*SPECIAL, "<", "a", "aa", ">", " ", "  ", "é", "世", "\n", "<a", "NORM"])).map(
    "".join
)


def make(pre_tokenizer: Any, normalizer: Any = None) -> PreTrainedTokenizerFast:
    """Byte-level BPE with a merge over a space, and added tokens of every kind."""
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "▁", "世", "é", "aa", "Ġa", "▁a"]
    merges = [("a", "a"), ("Ġ", "a"), ("▁", "a")]
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, merges, unk_token="!"))
    backend.pre_tokenizer = pre_tokenizer
    backend.normalizer = normalizer
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in ("<a>", "<a>a", "<b>")])
    backend.add_tokens([AddedToken("<strip>", lstrip=True, rstrip=True, normalized=False)])
    backend.add_tokens([AddedToken("<norm>", normalized=True), AddedToken("norm", normalized=True)])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


KINDS = {
    "byte level": make(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "byte level, leading space": make(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "metaspace always": make(pre_tokenizers.Metaspace(prepend_scheme="always")),
    "metaspace first": make(pre_tokenizers.Metaspace(prepend_scheme="first")),
    "lower case": make(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Lowercase()),
    "prepend": make(None, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])),
    "strip": make(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Strip()),
}
