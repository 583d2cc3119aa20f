"""What is served, what is refused and why. The models are tiny, random and made from their configurations."""

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV3Config,
    GptOssConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    PhimoeConfig,
    PreTrainedConfig,
    Qwen2MoeConfig,
    Qwen3NextConfig,
    T5Config,
)

from worker.model_loader import UnsupportedModel, load_model
from worker.paged_attention import KvShape

CPU = torch.device("cpu")
SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def saved(config: PreTrainedConfig, directory: Path) -> Path:
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


def test_a_model_is_described(tmp_path: Path) -> None:
    config = LlamaConfig(**SMALL, num_key_value_heads=2, max_position_embeddings=128, eos_token_id=[3, 5])
    loaded = load_model(saved(config, tmp_path), CPU)
    assert loaded.spec.vocab_size == 64
    assert loaded.spec.max_model_len == 128
    assert loaded.spec.eos_token_ids == {3, 5}
    assert loaded.kv_shapes == (KvShape(heads=2, key_dim=8, value_dim=8),) * 2
    assert loaded.kv_token_bytes == 2 * 2 * (8 + 8) * 4
    assert loaded.network.dtype == torch.float32


def test_latent_attention_has_shapes_of_its_own(tmp_path: Path) -> None:
    config = DeepseekV3Config(
        **SMALL, num_key_value_heads=4, first_k_dense_replace=2, q_lora_rank=16, kv_lora_rank=8, qk_nope_head_dim=8,
        qk_rope_head_dim=4, v_head_dim=6, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2,
    )  # fmt: skip
    assert load_model(saved(config, tmp_path), CPU).kv_shapes == (KvShape(heads=4, key_dim=12, value_dim=6),) * 2


@pytest.mark.parametrize(("asked", "length"), [(None, 128), (100, 100), (128, 128)])
def test_the_context_may_be_shortened(tmp_path: Path, asked: int | None, length: int) -> None:
    config = LlamaConfig(**SMALL, max_position_embeddings=128)
    assert load_model(saved(config, tmp_path), CPU, asked).spec.max_model_len == length


@pytest.mark.parametrize("asked", [0, 129])
def test_but_not_lengthened(tmp_path: Path, asked: int) -> None:
    config = LlamaConfig(**SMALL, max_position_embeddings=128)
    with pytest.raises(ValueError, match=f"max_model_len is {asked}: .* at most 128"):
        load_model(saved(config, tmp_path), CPU, asked)


def test_length_dependent_rotary_embeddings_end_where_they_would_change(tmp_path: Path) -> None:
    """Past its original length such a model turns all keys otherwise, those in the cache too."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 128}
    config = LlamaConfig(**SMALL, max_position_embeddings=512, rope_parameters=rope)
    assert load_model(saved(config, tmp_path), CPU).spec.max_model_len == 128


REFUSED = [
    (T5Config(d_model=16, d_ff=16, num_layers=1, num_heads=2), "not a decoder-only language model"),
    (BloomConfig(hidden_size=16, n_layer=1, n_head=2), "does not use the attention interface"),
    (MambaConfig(hidden_size=16, num_hidden_layers=1), "does not use the attention interface"),
    (Qwen3NextConfig(), "does not use the attention interface"),
    (Llama4TextConfig(), "layers of type chunked_attention"),
]


@pytest.mark.parametrize(("config", "reason"), REFUSED, ids=lambda value: getattr(value, "model_type", ""))
def test_refused_by_its_configuration(tmp_path: Path, config: PreTrainedConfig, reason: str) -> None:
    """Nothing but the configuration is there to read."""
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).model_type == config.model_type
    with pytest.raises(UnsupportedModel, match=reason):
        load_model(tmp_path, CPU)


def test_attention_sinks_are_refused(tmp_path: Path) -> None:
    config = GptOssConfig(**SMALL, num_key_value_heads=2, head_dim=8, num_local_experts=2, num_experts_per_tok=1)
    with pytest.raises(UnsupportedModel, match="layer 0 needs s_aux"):
        load_model(saved(config, tmp_path), CPU)


HIDDEN_WINDOWS = [
    PhimoeConfig(**SMALL, num_key_value_heads=2, num_local_experts=2, sliding_window=16),
    Qwen2MoeConfig(
        **SMALL, num_key_value_heads=2, num_experts=2, use_sliding_window=True, sliding_window=16, max_window_layers=2
    ),
]


@pytest.mark.parametrize("config", HIDDEN_WINDOWS, ids=lambda config: config.model_type)
def test_a_window_that_only_the_mask_knows_is_refused(tmp_path: Path, config: PreTrainedConfig) -> None:
    with pytest.raises(UnsupportedModel, match="layer 0 keeps its sliding window"):
        load_model(saved(config, tmp_path), CPU)


def test_a_directory_without_weights(tmp_path: Path) -> None:
    LlamaConfig(**SMALL).save_pretrained(tmp_path)
    with pytest.raises(OSError, match="safetensors"):
        load_model(tmp_path, CPU)
