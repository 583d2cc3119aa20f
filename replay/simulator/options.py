"""What is simulated: the fleet, and what goes wrong with its news."""

from dataclasses import dataclass

from worker.timing import Timing


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """Equal workers, each with `blocks` of `block_size` tokens, that batch as in Dynamo's simulator by default."""

    timing: Timing
    workers: int = 8
    blocks: int = 16_384
    block_size: int = 64
    max_batched_tokens: int = 8192
    max_num_seqs: int = 256

    @property
    def worker_tokens(self) -> int:
        """What one worker's cache holds."""
        return self.blocks * self.block_size

    @property
    def fleet_tokens(self) -> int:
        return self.workers * self.worker_tokens


@dataclass(frozen=True, slots=True)
class Restart:
    """A worker, counting from 0, that dies and is back at once with an empty cache. What it served is placed anew."""

    worker: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Faults:
    """What happens to the workers and to their KV events. `lag_s` delays each batch, and each answer to a replay; the
    others are shares of the batches. A batch out of order comes after the next one."""

    lag_s: float = 0.0
    loss: float = 0.0
    duplication: float = 0.0
    reorder: float = 0.0
    restarts: tuple[Restart, ...] = ()
