"""The simulated runner under the real engine, on a clock that only moves when told."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from transformers import PreTrainedTokenizerFast

from kv_events.publisher import NullPublisher
from worker.block_manager import BlockManager
from worker.engine import Engine
from worker.plan import ModelSpec
from worker.request import EngineRequest, FinishReason, SamplingParams, TokenOutput
from worker.scheduler import Scheduler
from worker.sim_runner import ANSWER, SimRunner, open_runner
from worker.timing import Linear

TIMING = Linear(prefill_tokens_per_s=1000.0, step_ms=10.0)
BLOCKS, BLOCK_SIZE = 64, 16


class Rig:
    """An engine whose steps take as long as it sleeps, and `overhead_s` more."""

    def __init__(self, overhead_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.overhead_s = overhead_s
        spec = ModelSpec(vocab_size=1000, max_model_len=4096, eos_token_ids=frozenset())
        runner = SimRunner(spec, TIMING, range(5), BLOCKS, BLOCK_SIZE, clock=lambda: self.now_s, sleep=self.sleep)
        scheduler = Scheduler(BlockManager(BLOCKS, BLOCK_SIZE), max_batched_tokens=64, max_num_seqs=8)
        self.engine = Engine(runner, scheduler, NullPublisher(), Random(0))

    def sleep(self, duration_s: float) -> None:
        assert duration_s >= 0
        self.now_s += duration_s

    def add(self, name: str, prompt: Sequence[int], max_tokens: int) -> None:
        self.engine.add(EngineRequest(name, prompt, SamplingParams(max_tokens=max_tokens)))

    def step(self) -> list[TokenOutput]:
        outputs = self.engine.step()
        self.now_s += self.overhead_s
        return outputs

    def run(self) -> list[TokenOutput]:
        outputs = []
        while self.engine.has_work:
            outputs += self.step()
        return outputs


def test_passes_take_the_models_time() -> None:
    rig = Rig()
    rig.add("a", range(100), max_tokens=3)
    ends_s = []
    while rig.engine.has_work:
        rig.step()
        ends_s.append(rig.now_s - 100)
    assert ends_s == pytest.approx([0.064, 0.064 + 0.036 + 0.01, 0.12, 0.13])


def test_what_is_cached_takes_no_time() -> None:
    rig = Rig()
    rig.add("a", range(60), max_tokens=1)
    rig.run()
    before_s = rig.now_s
    rig.add("b", range(60), max_tokens=1)
    (output,) = rig.run()
    assert output.cached_tokens == 48
    assert rig.now_s - before_s == pytest.approx(0.012 + 0.01)


def test_delays_do_not_add_up() -> None:
    rig = Rig(overhead_s=0.003)
    rig.add("a", range(10), max_tokens=50)
    rig.run()
    assert rig.now_s - 100 == pytest.approx(0.01 + 50 * 0.01 + 0.003)


def test_a_late_engine_catches_up_without_sleeping() -> None:
    rig = Rig()
    rig.add("a", range(10), max_tokens=8)
    rig.step()
    rig.now_s += 0.025  # two and a half passes
    rig.run()
    assert rig.now_s - 100 == pytest.approx(0.01 + 8 * 0.01)


def test_an_idle_time_is_no_delay() -> None:
    rig = Rig()
    rig.add("a", range(10), max_tokens=1)
    rig.run()
    rig.now_s = 200.0
    rig.add("b", range(500, 510), max_tokens=1)
    rig.run()
    assert rig.now_s == pytest.approx(200.02)


def test_answers_go_round_and_end_at_their_limit() -> None:
    rig = Rig()
    rig.add("a", range(10), max_tokens=7)
    outputs = rig.run()
    assert [output.token_id for output in outputs] == [0, 1, 2, 3, 4, 0, 1]
    assert [output.finish_reason for output in outputs] == [None] * 6 + [FinishReason.LENGTH]


def write_config(path: Path, **config: object) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    return path


def opened(path: Path, tokenizer: PreTrainedTokenizerFast, max_model_len: int | None = None) -> SimRunner:
    return open_runner(path, tokenizer, TIMING, max_model_len=max_model_len)


@pytest.mark.parametrize(
    "config", [{"max_position_embeddings": 300}, {"text_config": {"max_position_embeddings": 300}, "vision_config": {}}]
)
def test_the_context_is_the_models_unless_another_is_given(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, config: dict[str, object]
) -> None:
    write_config(tmp_path, **config)
    assert opened(tmp_path, tokenizer).model == ModelSpec(len(tokenizer), 300, frozenset())
    assert opened(tmp_path, tokenizer, 100_000).model.max_model_len == 100_000


@pytest.mark.parametrize("content", ['{"vocab_size": 3}', "[]", "{"])
def test_a_configuration_that_tells_no_context_is_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, content: str
) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        opened(tmp_path, tokenizer)


def test_the_answer_is_read_back_as_it_was_said(model_dir: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Wherever it stops, so that the next turn of a conversation finds it cached."""
    said = tokenizer.encode(ANSWER * 2, add_special_tokens=False)
    once = tokenizer.encode(ANSWER, add_special_tokens=False)
    assert said == once * 2
    for length in range(1, len(said)):
        assert tokenizer.encode(tokenizer.decode(said[:length]), add_special_tokens=False) == said[:length]
