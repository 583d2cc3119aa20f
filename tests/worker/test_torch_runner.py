"""The engine on real models: whatever the batch, chunks, hits and preemptions, the tokens of transformers' generate."""

from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from kv_events.publisher import NullPublisher
from worker.block_manager import BlockManager
from worker.engine import Engine
from worker.model_store import resolve
from worker.plan import Draw, ScheduledSequence, StepPlan
from worker.request import EngineRequest, FinishReason, SamplingParams, TokenOutput
from worker.scheduler import Scheduler
from worker.torch_runner import TorchRunner, open_runner

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # wide enough that greedy text varies
}
MODELS = [
    LlamaConfig(**SMALL),
    Qwen3Config(**SMALL, head_dim=8),
    MistralConfig(**SMALL, sliding_window=8),
    Gemma2Config(**SMALL, head_dim=8, query_pre_attn_scalar=8, sliding_window=8, attn_logit_softcapping=2.0),
    GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3),
    DeepseekV3Config(
        **SMALL | {"num_key_value_heads": 4}, first_k_dense_replace=3, q_lora_rank=16, kv_lora_rank=8,
        qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=6, n_routed_experts=4, n_group=1, topk_group=1,
    ),
]  # fmt: skip
PROMPT_LENGTHS = (5, 41, 16, 33, 1)
ANSWER_TOKENS = 8


@dataclass
class Case:
    runner: TorchRunner
    prompts: list[tuple[int, ...]]
    answers: list[list[int]]


@pytest.fixture(scope="module", params=MODELS, ids=lambda config: config.model_type)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A random model, prompts that share a beginning of 16 tokens, and what transformers answers to them."""
    config: PreTrainedConfig = request.param
    path = tmp_path_factory.mktemp(config.model_type)
    torch.manual_seed(0)
    config.eos_token_id = None
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    random = Random(0)
    tokens = [random.randrange(1, 96) for _ in range(64)]
    prompts = [(*tokens[:16], *random.sample(tokens, 48))[:length] for length in PROMPT_LENGTHS]
    runner = open_runner(path, device="cpu", num_blocks=64, block_size=4, threads=1)  # threads only wait for each other
    return Case(runner, prompts, [generated(path, prompt) for prompt in prompts])


def generated(path: Path, prompt: tuple[int, ...]) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager", dtype=torch.float32)
    output = model.generate(
        torch.tensor([prompt]), max_new_tokens=ANSWER_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    answer: list[int] = output[0, len(prompt) :].tolist()
    return answer


def engine(
    runner: TorchRunner, *, blocks: int | None = None, tokens: int = 256, seqs: int = 8, caching: bool = True
) -> Engine:
    manager = BlockManager(blocks or runner.num_blocks, runner.block_size, caching=caching)
    return Engine(runner, Scheduler(manager, max_batched_tokens=tokens, max_num_seqs=seqs), NullPublisher(), Random(0))


def greedy(prompt: tuple[int, ...], request_id: str, tokens: int = ANSWER_TOKENS) -> EngineRequest:
    return EngineRequest(request_id, prompt, SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True))


def finish(under_test: Engine) -> list[TokenOutput]:
    outputs = []
    while under_test.has_work:
        outputs += under_test.step()
    assert not [output.error for output in outputs if output.finish_reason is FinishReason.ERROR]
    return outputs


def answers(under_test: Engine, prompts: list[tuple[int, ...]]) -> list[list[int | None]]:
    for number, prompt in enumerate(prompts):
        under_test.add(greedy(prompt, str(number)))
    outputs = finish(under_test)
    return [
        [output.token_id for output in outputs if output.request_id == str(number)] for number in range(len(prompts))
    ]


def test_all_prompts_in_one_batch(case: Case) -> None:
    assert answers(engine(case.runner), case.prompts) == case.answers


def test_prompts_in_chunks_beside_decoding(case: Case) -> None:
    assert answers(engine(case.runner, tokens=8, caching=False), case.prompts) == case.answers


def test_prompts_found_in_the_cache(case: Case) -> None:
    under_test = engine(case.runner)
    answers(under_test, case.prompts)
    assert answers(under_test, case.prompts) == case.answers
    assert under_test.stats().prompt_tokens_hit >= sum(length - 4 for length in PROMPT_LENGTHS if length > 4)


def test_preempted_and_computed_again(case: Case) -> None:
    under_test = engine(case.runner, blocks=20, caching=False)
    assert answers(under_test, case.prompts) == case.answers
    assert under_test.stats().preemptions > 0


@pytest.fixture(scope="module")
def tiny_random(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return resolve("tiny-random", tmp_path_factory.mktemp("models"))


def test_logprobs_are_those_of_the_model(tiny_random: Path) -> None:
    runner = open_runner(tiny_random, device="cpu", num_blocks=8)
    prompt = (5, 6, 7, 8)
    sampling = SamplingParams(max_tokens=1, temperature=0, logprobs=3)
    plan = StepPlan((ScheduledSequence("a", prompt, 0, (3,), Draw(sampling, 0)),))
    [token] = runner.run(plan)
    model = AutoModelForCausalLM.from_pretrained(tiny_random, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)
    best = expected.topk(3)
    assert [token_id for token_id, _ in token.top_logprobs] == best.indices.tolist()
    assert [logprob for _, logprob in token.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_a_chunk_without_an_answer_yields_no_token(tiny_random: Path) -> None:
    runner = open_runner(tiny_random, device="cpu", num_blocks=8)
    assert runner.run(StepPlan((ScheduledSequence("a", (5, 6), 0, (0,), None),))) == []


def test_seeded_sampling_does_not_depend_on_the_batch(tiny_random: Path) -> None:
    runner = open_runner(tiny_random, device="cpu", num_blocks=64)
    sampling = SamplingParams(max_tokens=20, temperature=1.5, top_p=0.9, seed=11, ignore_eos=True)

    def spoken(*beside: EngineRequest) -> list[int | None]:
        under_test = engine(runner)
        for other in beside:
            under_test.add(other)
        under_test.add(EngineRequest("seeded", (1, 2, 3), sampling))
        return [output.token_id for output in finish(under_test) if output.request_id == "seeded"]

    alone = spoken()
    assert spoken(greedy((1, 2, 3, 4), "a", 30), greedy((9,) * 40, "b", 30)) == alone
    assert len(set(alone)) > 5


def test_the_default_pool_follows_the_memory(tiny_random: Path) -> None:
    runner = open_runner(tiny_random, device="cpu")
    assert runner.num_blocks == 2**30 // (16 * 3 * 2 * 2 * 16 * 4)  # block_size, layers, k and v, heads, dim, bytes


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_device_is_named(tiny_random: Path) -> None:
    with pytest.raises(ValueError, match="finds no CUDA device"):
        open_runner(tiny_random, device="cuda")
