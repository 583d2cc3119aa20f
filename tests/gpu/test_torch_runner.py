"""The engine on a CUDA device says what it says on a CPU."""

from pathlib import Path
from random import Random

import pytest
import torch

from kv_events.publisher import NullPublisher
from worker.block_manager import BlockManager
from worker.engine import Engine
from worker.model_store import resolve
from worker.request import EngineRequest, SamplingParams
from worker.scheduler import Scheduler
from worker.torch_runner import open_runner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
PROMPTS = [(*range(1, 40), last) for last in (40, 41, 42)] + [(7,), tuple(range(90, 190))]


@pytest.mark.parametrize("max_batched_tokens", [512, 16], ids=["whole prompts", "chunks"])
def test_same_tokens_as_on_a_cpu(tmp_path: Path, max_batched_tokens: int) -> None:
    path = resolve("tiny-random", tmp_path)
    assert spoken(path, "cuda", max_batched_tokens) == spoken(path, "cpu", max_batched_tokens)


def spoken(path: Path, device: str, max_batched_tokens: int) -> dict[str, list[int | None]]:
    """What greedy requests answer, all of them twice: the second time their prompts are cached."""
    runner = open_runner(path, device=device, num_blocks=128)
    blocks = BlockManager(runner.num_blocks, runner.block_size)
    scheduler = Scheduler(blocks, max_batched_tokens=max_batched_tokens, max_num_seqs=8)
    engine = Engine(runner, scheduler, NullPublisher(), Random(0))
    answers: dict[str, list[int | None]] = {}
    for turn in range(2):
        for number, prompt in enumerate(PROMPTS):
            sampling = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
            engine.add(EngineRequest(f"{turn}/{number}", prompt, sampling))
        while engine.has_work:
            for output in engine.step():
                answers.setdefault(output.request_id, []).append(output.token_id)
    assert all(answers[f"0/{number}"] == answers[f"1/{number}"] for number in range(len(PROMPTS)))
    return answers
