"""The real runner: a Hugging Face causal LM on a CPU or a CUDA device, over a paged KV pool."""

from pathlib import Path

import torch

from worker.model_loader import LoadedModel, load_model
from worker.paged_attention import KvPool, PagedBatch, QueryGroup
from worker.plan import SampledToken, ScheduledSequence, StepPlan
from worker.sampler import sample

CPU_POOL_BYTES = 2**30  # a CPU's memory is for others too, and is taken only as blocks are first used
CUDA_POOL_SHARE = 0.85  # of what is free beside the weights; the rest is for activations


def open_runner(
    path: Path,
    *,
    device: str = "auto",
    num_blocks: int | None = None,
    block_size: int = 16,
    max_model_len: int | None = None,
    threads: int | None = None,
) -> "TorchRunner":
    """Load the model at `path` and lay out its KV pool. `threads` None leaves torch's own choice, all cores.

    `num_blocks` None: 1 GiB of blocks on a CPU, 85 % of the free memory on a CUDA device.
    Raises UnsupportedModel, ValueError for arguments that cannot be met, OSError for a damaged directory.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    loaded = load_model(path, _device(device), max_model_len)
    return TorchRunner(loaded, num_blocks or _default_num_blocks(loaded, block_size), block_size)


class TorchRunner:
    """Implements `worker.plan.PooledRunner`."""

    def __init__(self, loaded: LoadedModel, num_blocks: int, block_size: int) -> None:
        self.model = loaded.spec
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._network = loaded.network
        self._device = loaded.network.device
        self._pool = KvPool(loaded.kv_shapes, num_blocks, block_size, loaded.network.dtype, self._device)

    def __repr__(self) -> str:
        name = type(self._network).__name__
        return f"<TorchRunner {name} on {self._device}, {self.num_blocks} blocks of {self.block_size}>"

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[SampledToken]:
        """Compute a step: all sequences flattened into one row, those with one token first and side by side."""
        sequences = sorted(plan.sequences, key=lambda sequence: len(sequence.token_ids) > 1)
        logits = self._network(
            input_ids=self._tensor([token for each in sequences for token in each.token_ids])[None],
            position_ids=self._tensor([position for each in sequences for position in each.positions])[None],
            logits_to_keep=self._tensor(_drawing_rows(plan, sequences)),
            use_cache=False,
            paged=self._batch(sequences),
        ).logits[0]
        return sample(logits, plan.draws)

    def _batch(self, sequences: list[ScheduledSequence]) -> PagedBatch:
        size = self.block_size
        slots = [each.block_table[at // size] * size + at % size for each in sequences for at in each.positions]
        decoding = sum(len(each.token_ids) == 1 for each in sequences)
        members = [sequences[:decoding]] if decoding else []
        members += [[each] for each in sequences[decoding:]]
        groups, row = [], 0
        for group in members:
            groups.append(self._group(group, row))
            row = groups[-1].rows.stop
        return PagedBatch(self._pool, self._tensor(slots), groups)

    def _group(self, members: list[ScheduledSequence], first_row: int) -> QueryGroup:
        """`members` have equally many tokens to compute."""
        queries = len(members[0].token_ids)
        context = max(each.positions.stop for each in members)
        width = -(-context // self.block_size)
        return QueryGroup(
            rows=slice(first_row, first_row + queries * len(members)),
            block_tables=self._tensor([_fitted(each.block_table, width) for each in members]),
            starts=self._tensor([each.start for each in members]),
            queries=queries,
            context=context,
        )

    def _tensor(self, values: list[int] | list[tuple[int, ...]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long, device=self._device)


def _drawing_rows(plan: StepPlan, sequences: list[ScheduledSequence]) -> list[int]:
    """The rows whose logits are needed: the last one of each sequence that gets a token, in the plan's order."""
    last_row, end = {}, 0
    for each in sequences:
        end += len(each.token_ids)
        last_row[each.request_id] = end - 1
    return [last_row[each.request_id] for each in plan.drawing]


def _fitted(block_table: tuple[int, ...], width: int) -> tuple[int, ...]:
    """The first `width` blocks. A shorter table is padded with its own block: masked content must not be another's."""
    return block_table[:width] + block_table[:1] * (width - len(block_table))


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch finds no CUDA device here")
    return torch.device(name)


def _default_num_blocks(loaded: LoadedModel, block_size: int) -> int:
    device = loaded.network.device
    pool_bytes = CPU_POOL_BYTES
    if device.type == "cuda":
        pool_bytes = int(torch.cuda.mem_get_info(device)[0] * CUDA_POOL_SHARE)
    return max(1, pool_bytes // (loaded.kv_token_bytes * block_size))
