"""Loading a Hugging Face causal LM for paged attention, or saying why it cannot be served.

What the configuration tells is checked before the weights are read. Then one token goes through the model with a probe
in the place of attention: it learns each layer's K/V shape and refuses what `paged_attention` does not do.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)

from worker.paged_attention import IMPLEMENTATION, KvShape, register
from worker.plan import ModelSpec

SERVED_LAYERS = {"full_attention", "sliding_attention"}
LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
NEUTRAL_TENSORS = {"position_ids", "cache_position"}  # options of a layer that do not change its attention


class UnsupportedModel(ValueError):
    """This model cannot be served through paged attention. The message says why."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    network: PreTrainedModel
    spec: ModelSpec
    kv_shapes: tuple[KvShape, ...]  # of each layer

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of K and V, over all layers, of one token."""
        elements = sum(shape.heads * (shape.key_dim + shape.value_dim) for shape in self.kv_shapes)
        return elements * self.network.dtype.itemsize


def load_model(path: Path, device: torch.device, max_model_len: int | None = None) -> LoadedModel:
    """Load a model directory. `max_model_len` None: as long as the model's own context.

    Raises UnsupportedModel, ValueError for a `max_model_len` beyond that context, OSError for a damaged directory.
    """
    config = AutoConfig.from_pretrained(path, local_files_only=True)
    _check_architecture(config)
    context_len = _context_len(config.get_text_config(), max_model_len)
    register()
    network: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        path,
        local_files_only=True,
        attn_implementation=IMPLEMENTATION,
        dtype=torch.float32 if device.type == "cpu" else "auto",  # CPUs without bfloat16 units are far slower in it
        device_map=device,
    )
    spec = ModelSpec(config.get_text_config().vocab_size, context_len, _end_tokens(network))
    return LoadedModel(network, spec, _probe_layers(network))


def _check_architecture(config: PreTrainedConfig) -> None:
    architecture: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if config.is_encoder_decoder or architecture is None:
        raise UnsupportedModel(f"{config.model_type!r} is not a decoder-only language model")
    if not architecture.is_backend_compatible():
        raise UnsupportedModel(f"{config.model_type!r} does not use the attention interface of transformers")
    layer_types = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if not layer_types <= SERVED_LAYERS:
        wrong = ", ".join(sorted(layer_types - SERVED_LAYERS))
        raise UnsupportedModel(f"{config.model_type!r} has layers of type {wrong}; only attention can be paged")


def _context_len(config: PreTrainedConfig, asked: int | None) -> int:
    """How long a sequence may be. Rotary embeddings that change with the length would invalidate cached K/V."""
    longest: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in LENGTH_DEPENDENT_ROPE:
        longest = rope.get("original_max_position_embeddings") or longest
    if asked is not None and (asked < 1 or (longest is not None and asked > longest)):
        raise ValueError(f"max_model_len is {asked}: it must be at least 1 and at most {longest}, the model's context")
    if asked is None and longest is None:
        raise UnsupportedModel("the model's configuration names no context length: give max_model_len")
    return asked or longest or 0


def _end_tokens(network: PreTrainedModel) -> frozenset[int]:
    end: int | list[int] | None = network.generation_config.eos_token_id
    if end is None:
        return frozenset()
    return frozenset([end] if isinstance(end, int) else end)


def _probe_layers(network: PreTrainedModel) -> tuple[KvShape, ...]:
    """Each layer's K/V shape, as one token through the model shows it."""
    config = network.config.get_text_config()
    probe = _Probe(_windowed_layers(config))
    token = torch.zeros(1, 1, dtype=torch.long, device=network.device)
    with torch.inference_mode():
        network(input_ids=token, position_ids=token, use_cache=False, paged=probe)
    if sorted(probe.shapes) != list(range(config.num_hidden_layers)):
        raise UnsupportedModel(
            f"{len(probe.shapes)} of the {config.num_hidden_layers} layers attend through the attention interface"
        )
    return tuple(probe.shapes[index] for index in range(config.num_hidden_layers))


def _windowed_layers(config: PreTrainedConfig) -> set[int]:
    """The layers that the configuration gives a sliding window."""
    windowed = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
    layer_types = getattr(config, "layer_types", None) or [windowed] * config.num_hidden_layers
    return {index for index, layer_type in enumerate(layer_types) if layer_type == "sliding_attention"}


class _Probe:
    """Stands in for attention: notes shapes, answers zeros, refuses what paged attention would get wrong."""

    def __init__(self, windowed_layers: set[int]) -> None:
        self._windowed_layers = windowed_layers
        self.shapes: dict[int, KvShape] = {}  # by layer

    def attend(
        self,
        layer: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        sliding_window: int | None = None,
        is_causal: bool | None = None,
        **options: Any,
    ) -> Tensor:
        index = getattr(layer, "layer_idx", None)
        if not isinstance(index, int) or index in self.shapes:
            raise UnsupportedModel(f"{type(layer).__name__} does not say which layer it is")
        if is_causal is False or not getattr(layer, "is_causal", True):
            raise UnsupportedModel(f"layer {index} attends to tokens that come later")
        if index in self._windowed_layers and not sliding_window:
            raise UnsupportedModel(f"layer {index} keeps its sliding window from the attention interface")
        if unknown := {name for name, option in options.items() if isinstance(option, Tensor)} - NEUTRAL_TENSORS:
            raise UnsupportedModel(f"layer {index} needs {', '.join(sorted(unknown))}, which paged attention lacks")
        self.shapes[index] = KvShape(key.shape[1], key.shape[3], value.shape[3])
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])
