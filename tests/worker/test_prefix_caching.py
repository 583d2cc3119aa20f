"""Caching changes no output, on a real model: six chats over one system prompt, the first alone, then five together."""

from dataclasses import dataclass
from random import Random

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from kv_events.publisher import NullPublisher
from worker.block_manager import BlockManager
from worker.engine import Engine
from worker.model_store import resolve
from worker.request import EngineRequest, SamplingParams
from worker.scheduler import Scheduler
from worker.torch_runner import TorchRunner, open_runner

pytestmark = pytest.mark.model

SYSTEM = (
    "You are an expert in serving large language models. Answer briefly and exactly, give numbers where they help, "
    "and say so when you do not know. Prefer plain words to jargon, never repeat the question, and keep to the "
    "language of whoever asks. Count time in milliseconds and length in tokens. When a question has more than one "
    "part, answer the parts in their order, each in a sentence of its own, and leave out everything else that was "
    "not asked for."
)
QUESTIONS = (
    "What does the KV cache of a language model hold, please?",
    "Explain in one sentence what continuous batching does for an engine and for its users.",
    "What is the global interpreter lock of Python, and whom does it hurt the most?",
    "Write a single line that compares the moon with something in a very small old kitchen.",
    "Explain tensor parallelism to a programmer who has never seen it in one very short sentence, please.",
    "How much is one and one? Answer right away, just with the number alone and with nothing else at all.",
)
PROMPT_TOKENS = [123, 126, 126, 126, 128, 132]
SHARED_TOKENS = 103  # six whole blocks of 16
ANSWER_TOKENS = 10


@dataclass(frozen=True)
class Run:
    """What six requests said, and what the last five of them cost."""

    answers: list[str]
    prefilled: int
    queried: int
    hit: int


@pytest.fixture(scope="module")
def smollm2() -> tuple[TorchRunner, PreTrainedTokenizerBase]:
    path = resolve("smollm2-135m")
    return open_runner(path, device="cpu", num_blocks=256, threads=1), AutoTokenizer.from_pretrained(path)


@pytest.fixture(scope="module")
def prompts(smollm2: tuple[TorchRunner, PreTrainedTokenizerBase]) -> list[tuple[int, ...]]:
    chats = [[{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}] for question in QUESTIONS]
    return [
        tuple(smollm2[1].apply_chat_template(chat, add_generation_prompt=True, return_dict=False)) for chat in chats
    ]


def run(smollm2: tuple[TorchRunner, PreTrainedTokenizerBase], prompts: list[tuple[int, ...]], *, caching: bool) -> Run:
    """Serve the first prompt alone, then the others together."""
    runner, tokenizer = smollm2
    blocks = BlockManager(runner.num_blocks, runner.block_size, caching=caching)
    scheduler = Scheduler(blocks, max_batched_tokens=2048, max_num_seqs=8)
    engine = Engine(runner, scheduler, NullPublisher(), Random(0))
    answers: dict[str, list[int]] = {}

    def serve(numbers: range) -> None:
        for number in numbers:
            sampling = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0)
            engine.add(EngineRequest(str(number), prompts[number], sampling))
        while engine.has_work:
            for output in engine.step():
                assert output.token_id is not None
                answers.setdefault(output.request_id, []).append(output.token_id)

    serve(range(1))
    before = engine.stats()
    serve(range(1, len(prompts)))
    after = engine.stats()
    decoded = after.generated_tokens - before.generated_tokens - (len(prompts) - 1)  # the first comes with the prefill
    return Run(
        answers=[tokenizer.decode(answers[str(number)]) for number in range(len(prompts))],
        prefilled=after.computed_tokens - before.computed_tokens - decoded,
        queried=after.prompt_tokens_queried,
        hit=after.prompt_tokens_hit,
    )


def test_same_text_for_a_third_of_the_work(
    smollm2: tuple[TorchRunner, PreTrainedTokenizerBase], prompts: list[tuple[int, ...]]
) -> None:
    assert [len(prompt) for prompt in prompts] == PROMPT_TOKENS
    assert {prompt[:SHARED_TOKENS] for prompt in prompts} == {prompts[0][:SHARED_TOKENS]}
    cached, computed = run(smollm2, prompts, caching=True), run(smollm2, prompts, caching=False)
    assert cached.answers == computed.answers
    assert (cached.hit, cached.queried) == (480, 755)
    assert (computed.hit, computed.prefilled) == (0, sum(PROMPT_TOKENS[1:]))
    assert cached.prefilled == sum(PROMPT_TOKENS[1:]) - 480
