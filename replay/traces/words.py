"""Texts for prompts of which a trace has only the names of their blocks, for routers that read text and not tokens.

Every word has four letters and a space before it, and is one token in the vocabularies of Llama 2, Mistral, Qwen,
DeepSeek, SmolLM2 and GPT-4; in a vocabulary of bytes each is five. So a text's tokens can be counted without its
tokenizer, once that is known how many a word has, and none of them depends on the words before it.
"""

import numpy as np
from numpy.typing import NDArray

from replay.traces.tokens import drawn
from replay.traces.trace import TraceRequest

WORDS = """
    also area back ball bank base beat best bird blue body bone born both call calm camp card case cash
    city club coat code come cook copy core cost crew dark data dawn days dear deep dish door draw drop
    earn ears easy edge ever face fair fall fast feed feet fell file fill find fine fish five flow food
    form four from full fund gate gave glad goal gone good grew grow half hall hang hard head hear held
    help hero high hold hole hope hour idea inch item join just keen kept kind know lack land last lead
    leaf left less lift like list live long look loss lost luck made make mass mean meat mild mile mill
    mind miss mode moon more move much must near neck news next none note only onto over pace page paid
    pair park pass past peak pick play plot poem poet pool poor pure push rail rain rare rate real rear
    rice rich ring rise road rock roll roof root rose safe sail salt same save seal seed seek seen self
    send ship shop show side sign sing site skin slow soft soil sold song soon soul soup star stay step
    stop suit sure tail take talk tall team tell test text that them they thin thus tide tiny told took
    tool town tree true tube turn twin unit upon vast very vote wage wake walk want warm wave weak week
    well were west when whom wild will wing wire wish with wood word worn yard year
"""


class TextExpander:
    """Makes texts whose words agree exactly where the names of their blocks do, the same in every process."""

    def __init__(self, block_tokens: int, tokens_per_word: float, seed: int = 0) -> None:
        """`block_tokens` are the trace's. With half a word more or less, a block has as many words as give them."""
        self._tokens_per_word = tokens_per_word
        self._block_words = max(1, round(block_tokens / tokens_per_word))
        self._block_tokens, self._seed = block_tokens, seed
        self._words = np.array([f" {word}" for word in WORDS.split()], dtype="S5")

    def text(self, request: TraceRequest) -> str:
        """About `request.input_tokens` long."""
        whole_blocks, rest_tokens = divmod(request.input_tokens, self._block_tokens)
        rest_words = min(self._block_words, max(1, round(rest_tokens / self._tokens_per_word)) if rest_tokens else 0)
        count = whole_blocks * self._block_words + rest_words
        return self._join(drawn(request, self._block_words, count, len(self._words), self._seed))

    def sample(self, words: int) -> str:
        """Any text of so many words."""
        return self._join(np.arange(words, dtype=np.uint64) % np.uint64(len(self._words)))

    def _join(self, numbers: NDArray[np.uint64]) -> str:
        return self._words[numbers].tobytes().decode()
