"""An encoder over the tokenizer that all rooms' tests share."""

import pytest
from transformers import PreTrainedTokenizerFast

from protocol.prompts import PromptEncoder


@pytest.fixture
def encoder(tokenizer: PreTrainedTokenizerFast) -> PromptEncoder:
    return PromptEncoder(tokenizer)
