"""Attention over a paged KV pool, behind the attention interface of transformers.

A model is called with all tokens of a step in one row [1, tokens] and `paged=` among its keyword arguments, which it
hands through to each layer's attention function: so the batch reaches the function registered here without any global.
No mask function is registered under its name, so transformers makes no mask; a layer's own (causal, perhaps within a
sliding window) is made here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

IMPLEMENTATION = "warmroute_paged"


class Attention(Protocol):
    """What answers for a layer's attention during one call of the model."""

    def attend(self, layer: nn.Module, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """query [1, heads, tokens, dim], key and value [1, kv_heads, tokens, dim] -> [1, tokens, heads, value_dim]."""


def register() -> None:
    """Make `attn_implementation=IMPLEMENTATION` known to transformers. Doing it twice is fine."""
    AttentionInterface.register(IMPLEMENTATION, _attention_function)


def _attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    paged: Attention,
    **options: Any,
) -> tuple[Tensor, None]:
    return paged.attend(module, query, key, value, **options), None


@dataclass(frozen=True, slots=True)
class KvShape:
    """One layer's K and V for one token."""

    heads: int
    key_dim: int
    value_dim: int


class KvPool:
    """The K/V of all layers, [blocks, block_size, heads, dim] each. Block numbers are the block manager's."""

    def __init__(
        self, shapes: Sequence[KvShape], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.block_size = block_size
        size = num_blocks, block_size
        self._keys = [torch.zeros(*size, s.heads, s.key_dim, dtype=dtype, device=device) for s in shapes]
        self._values = [torch.zeros(*size, s.heads, s.value_dim, dtype=dtype, device=device) for s in shapes]

    def write(self, layer: int, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """Store key and value [1, heads, tokens, dim] at `slots` [tokens]."""
        self._keys[layer].flatten(0, 1).index_copy_(0, slots, key[0].transpose(0, 1))
        self._values[layer].flatten(0, 1).index_copy_(0, slots, value[0].transpose(0, 1))

    def read(self, layer: int, block_tables: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """K and V of the first `tokens` positions of the sequences of `block_tables` [sequences, blocks].

        Each is [sequences, heads, tokens, dim].
        """
        return _gather(self._keys[layer], block_tables, tokens), _gather(self._values[layer], block_tables, tokens)


def _gather(pool: Tensor, block_tables: Tensor, tokens: int) -> Tensor:
    blocks = pool.flatten(1).index_select(0, block_tables.flatten())  # whole blocks: one copy each, five times faster
    return blocks.view(len(block_tables), -1, *pool.shape[2:])[:, :tokens].transpose(1, 2)


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """Sequences of one step with equally many tokens to compute, so that one call attends for all of them.

    `rows` are theirs in the flattened step, sequence after sequence; `starts` is the position of each one's first;
    `context` is the longest sequence's length, this step's tokens included. Shorter block tables are padded.
    """

    rows: slice
    block_tables: Tensor  # [sequences, blocks]
    starts: Tensor  # [sequences]
    queries: int
    context: int

    @property
    def from_the_start(self) -> bool:
        """One sequence, nothing of which was computed before."""
        return len(self.starts) == 1 and self.queries == self.context

    def mask(self, shared: int, window: int | None) -> Tensor | None:
        """Which positions each query sees, [sequences, 1, shared * queries, context]; None: all of them.

        `shared` repeats the queries, `window` is how many positions back one sees, its own included.
        """
        if len(self.starts) == 1 and self.queries == 1 and window is None:
            return None
        offsets = torch.arange(self.queries, device=self.starts.device).repeat(shared)
        query = self.starts[:, None, None, None] + offsets[:, None]
        key = torch.arange(self.context, device=self.starts.device)
        visible = key <= query
        return visible if window is None else visible & (key > query - window)


class PagedBatch:
    """Causal attention of one step's sequences, each to its own past in the pool and to itself.

    `slots` [tokens] is where the K/V of the tokens go; the rows of `groups` follow each other and cover the step.
    """

    def __init__(self, pool: KvPool, slots: Tensor, groups: Sequence[QueryGroup]) -> None:
        self._pool = pool
        self._slots = slots
        self._groups = groups
        self._masks: dict[tuple[int, int, int | None], Tensor | None] = {}  # shared by all layers of one shape

    def attend(
        self,
        layer: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        **_: Any,
    ) -> Tensor:
        """See `Attention`. All K/V are written before any is read: sequences may share blocks of this very step."""
        index: int = layer.layer_idx  # type: ignore[assignment]
        self._pool.write(index, key, value, self._slots)
        outputs = []
        for number, group in enumerate(self._groups):
            keys, values = self._pool.read(index, group.block_tables, group.context)
            shape = query.shape[1], len(group.starts), group.queries, query.shape[3]
            queries = query[0, :, group.rows].reshape(shape).transpose(0, 1)
            window = sliding_window if sliding_window and sliding_window < group.context else None
            if group.from_the_start and window is None and softcap is None:
                output = _causal(queries, keys, values, scaling)
            else:
                mask = self._mask(number, query.shape[1] // key.shape[1], window)
                output = _masked(queries, keys, values, mask, scaling, softcap)
            outputs.append(output.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs)[None]

    def _mask(self, number: int, shared: int, window: int | None) -> Tensor | None:
        name = number, shared, window
        if name not in self._masks:
            self._masks[name] = self._groups[number].mask(shared, window)
        return self._masks[name]


def _causal(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Attention of a whole prompt to itself: torch's fastest kernels know this case. Shapes as for `_masked`."""
    grouped = query.shape[1] != key.shape[1]
    return scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=grouped)


def _masked(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, softcap: float | None
) -> Tensor:
    """query [sequences, heads, queries, dim]; key, value [sequences, kv_heads, context, dim] -> like query.

    The heads that share a K/V head become more queries of it, so that K/V need not be repeated for each.
    """
    packed = query.reshape(*key.shape[:2], -1, query.shape[3])  # [sequences, kv_heads, shared * queries, dim]
    if softcap is None:
        output = scaled_dot_product_attention(packed, key, value, attn_mask=mask, scale=scaling)
    else:
        output = _softcapped(packed, key, value, mask, scaling, softcap)
    return output.reshape(*query.shape[:3], -1)


def _softcapped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None, softcap: float
) -> Tensor:
    """Attention with scores bent to within +-softcap (Gemma 2, arXiv 2408.00118), which torch's kernels lack."""
    scores = query @ key.transpose(-1, -2) * (scaling or query.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value
