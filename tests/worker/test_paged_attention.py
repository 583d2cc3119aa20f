"""Paged attention against attention written out token by token."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from worker.paged_attention import KvPool, KvShape, PagedBatch, QueryGroup

BLOCK_SIZE, KV_HEADS, HEADS, DIM, VALUE_DIM = 4, 2, 6, 8, 8
LAYER: Any = SimpleNamespace(layer_idx=0)


def reference(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, softcap: float | None
) -> Tensor:
    """Of a whole sequence: query [heads, tokens, dim], key, value [kv_heads, tokens, dim] -> [tokens, heads, dim]."""
    tokens = query.shape[1]
    output = torch.zeros(tokens, HEADS, value.shape[2])
    for at in range(tokens):
        first = 0 if window is None else max(0, at - window + 1)
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            scores = key[kv_head, first : at + 1] @ query[head, at] * scaling
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            output[at, head] = scores.softmax(0) @ value[kv_head, first : at + 1]
    return output


class Sequences:
    """Random sequences, computed step by step through the pool."""

    def __init__(self, lengths: list[int], value_dim: int = VALUE_DIM) -> None:
        generator = torch.Generator().manual_seed(0)
        blocks = sum(-(-length // BLOCK_SIZE) for length in lengths)
        free = torch.randperm(blocks, generator=generator).tolist()
        self.tables = [[free.pop() for _ in range(-(-length // BLOCK_SIZE))] for length in lengths]
        self.query = [torch.randn(HEADS, length, DIM, generator=generator) for length in lengths]
        self.key = [torch.randn(KV_HEADS, length, DIM, generator=generator) for length in lengths]
        self.value = [torch.randn(KV_HEADS, length, value_dim, generator=generator) for length in lengths]
        shape = KvShape(KV_HEADS, DIM, value_dim)
        self.pool = KvPool([shape], blocks, BLOCK_SIZE, torch.float32, torch.device("cpu"))

    def step(self, groups: list[list[tuple[int, range]]], **options: Any) -> list[Tensor]:
        """Compute those positions of those sequences; each group's have equal lengths. One output for each."""
        parts = [part for group in groups for part in group]
        slots = [self.tables[n][at // BLOCK_SIZE] * BLOCK_SIZE + at % BLOCK_SIZE for n, span in parts for at in span]
        query, key, value = (
            torch.cat([tensors[n][:, span.start : span.stop] for n, span in parts], 1)[None]
            for tensors in (self.query, self.key, self.value)
        )
        batch = PagedBatch(self.pool, torch.tensor(slots), self._groups(groups))
        output = batch.attend(LAYER, query, key, value, **options)[0]
        return list(output.split([len(span) for _, span in parts]))

    def _groups(self, groups: list[list[tuple[int, range]]]) -> list[QueryGroup]:
        made, row = [], 0
        for group in groups:
            queries, context = len(group[0][1]), max(span.stop for _, span in group)
            width = -(-context // BLOCK_SIZE)
            tables = [(self.tables[n] + self.tables[n][:1] * width)[:width] for n, _ in group]
            starts = torch.tensor([span.start for _, span in group])
            rows = slice(row, row + queries * len(group))
            made.append(QueryGroup(rows, torch.tensor(tables), starts, queries, context))
            row = rows.stop
        return made

    def expected(self, number: int, window: int | None = None, softcap: float | None = None) -> Tensor:
        tensors = self.query[number], self.key[number], self.value[number]
        return reference(*tensors, scaling=0.3, window=window, softcap=softcap)


VARIANTS = [(None, None), (3, None), (5, None), (None, 2.0), (3, 2.0)]


@pytest.mark.parametrize(("window", "softcap"), VARIANTS)
def test_prompt_in_chunks_then_single_tokens(window: int | None, softcap: float | None) -> None:
    sequences = Sequences([14])
    spans = [range(6), range(6, 11), range(11, 12), range(12, 13), range(13, 14)]
    steps = [sequences.step([[(0, span)]], scaling=0.3, sliding_window=window, softcap=softcap)[0] for span in spans]
    torch.testing.assert_close(torch.cat(steps), sequences.expected(0, window, softcap), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("window", "softcap"), VARIANTS)
def test_a_mixed_step(window: int | None, softcap: float | None) -> None:
    """Three sequences of different lengths that decode together, beside a chunk and a whole prompt."""
    sequences = Sequences([4, 9, 13, 12, 7])
    before = [(0, range(3)), (1, range(8)), (2, range(12)), (3, range(5))]
    sequences.step([[part] for part in before])
    parts = [(0, range(3, 4)), (1, range(8, 9)), (2, range(12, 13)), (3, range(5, 12)), (4, range(7))]
    outputs = sequences.step([parts[:3], [parts[3]], [parts[4]]], scaling=0.3, sliding_window=window, softcap=softcap)
    for (number, span), output in zip(parts, outputs, strict=True):
        expected = sequences.expected(number, window, softcap)[span.start : span.stop]
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)


def test_a_block_filled_in_this_step_is_read_in_it() -> None:
    """A second sequence with the same beginning reads the first one's block while that is being computed."""
    sequences = Sequences([6, 6])
    for tensors in (sequences.query, sequences.key, sequences.value):
        tensors[1][:, :4] = tensors[0][:, :4]
    sequences.tables[1][0] = sequences.tables[0][0]
    _, output = sequences.step([[(0, range(6))], [(1, range(4, 6))]], scaling=0.3)
    torch.testing.assert_close(output, sequences.expected(1)[4:], rtol=1e-4, atol=1e-5)


def test_value_heads_may_be_narrower() -> None:
    sequences = Sequences([9, 5], value_dim=4)
    outputs = sequences.step([[(0, range(9))], [(1, range(5))]], scaling=0.3)
    for number, output in enumerate(outputs):
        torch.testing.assert_close(output, sequences.expected(number), rtol=1e-4, atol=1e-5)


def test_scaling_defaults_to_the_head_size() -> None:
    sequences = Sequences([9])
    span = [[(0, range(9))]]
    for softcap in (None, 2.0):
        [default] = sequences.step(span, softcap=softcap)
        [explicit] = sequences.step(span, softcap=softcap, scaling=1 / math.sqrt(DIM))
        torch.testing.assert_close(default, explicit)
