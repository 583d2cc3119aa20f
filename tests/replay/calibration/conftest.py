"""Workers in virtual time that follow a profile exactly."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from replay.calibration.engine import TokenIds, TokenTimes
from worker.timing import Profile


@dataclass
class _Sequence:
    prompt_tokens: int
    computed: int = 0
    tokens_s: list[float] = field(default_factory=list)

    @property
    def decoding(self) -> bool:
        return self.computed == self.prompt_tokens


@dataclass
class VirtualEngine:
    """Continuous batching, first come, first served: decodes first, then prompts in chunks within the budget."""

    profile: Profile
    max_batched_tokens: int = 2048
    max_num_seqs: int = 256
    prompts: list[list[int]] = field(default_factory=list)
    now_s: float = 100.0

    async def answer(self, prompts: Sequence[TokenIds], answer_tokens: int) -> list[TokenTimes]:
        self.prompts += [prompt.tolist() for prompt in prompts]
        sent_s, sequences = self.now_s, [_Sequence(len(prompt)) for prompt in prompts]
        while unfinished := [each for each in sequences if len(each.tokens_s) < answer_tokens]:
            self._run_pass(unfinished[: self.max_num_seqs])
        return [TokenTimes(sent_s, tuple(each.tokens_s)) for each in sequences]

    def _run_pass(self, running: list[_Sequence]) -> None:
        drawing = [each for each in running if each.decoding]
        budget = self.max_batched_tokens - len(drawing)
        new_tokens = 0
        for each in running:
            chunk = min(each.prompt_tokens - each.computed, budget - new_tokens)
            if chunk > 0:
                each.computed += chunk
                new_tokens += chunk
                drawing += [each] if each.decoding else []
        kv_tokens = sum(each.computed + len(each.tokens_s) for each in drawing)
        took_ms = self.profile.prefill_ms(new_tokens) if new_tokens else 0.0
        took_ms += float(self.profile.decode_ms(len(drawing), np.float64(kv_tokens), 1)) if drawing else 0.0
        self.now_s += took_ms / 1e3
        for each in drawing:
            each.tokens_s.append(self.now_s)


@pytest.fixture
def make_engine() -> Callable[..., VirtualEngine]:
    return VirtualEngine
