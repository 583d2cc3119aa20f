"""The simulated runner: it computes nothing, but each pass takes the time that it would take a model.

Around it everything is real, so that a fleet of such workers shows what routers do, on one small machine without a GPU.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from worker.plan import ModelSpec, SampledToken, StepPlan
from worker.timing import Timing, pass_ms

DEFAULT_NUM_BLOCKS = 16_384
ANSWER = "This answer is simulated, no model was run.\n"
"""Said over and over. Tokenizers read it back as the tokens that it was made of, wherever it stops: so the next turn of
a conversation finds the answer in the cache, as it would a real one."""


def open_runner(
    path: Path,
    tokenizer: Any,
    timing: Timing,
    *,
    num_blocks: int | None = None,
    block_size: int = 16,
    max_model_len: int | None = None,
) -> "SimRunner":
    """In place of the model at `path`, of which only the configuration is read, and that for its context alone.

    `max_model_len` may exceed that context. Raises ValueError if neither says how long a sequence may be, OSError for a
    directory without configuration.
    """
    spec = ModelSpec(len(tokenizer), max_model_len or _context_len(path / "config.json"), eos_token_ids=frozenset())
    answer = tokenizer.encode(ANSWER, add_special_tokens=False)
    return SimRunner(spec, timing, answer, num_blocks or DEFAULT_NUM_BLOCKS, block_size)


class SimRunner:
    """Implements `worker.plan.PooledRunner`. Every sequence gets the tokens of `answer`, round and round: none of them
    ends it, so it is as long as it may be.

    While sequences go on from one pass to the next, a pass begins when the one before was due to end. So delays do not
    add up, be it a late wake-up or the time that scheduler and server take.
    """

    def __init__(
        self,
        model: ModelSpec,
        timing: Timing,
        answer: Sequence[int],
        num_blocks: int,
        block_size: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.model = model
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._timing = timing
        self._answer = [SampledToken(token_id, logprob=0.0) for token_id in answer]
        self._clock = clock
        self._sleep = sleep
        self._request_ids: frozenset[str] = frozenset()  # of the last pass
        self._end_s = 0.0  # when that was due to end

    def __repr__(self) -> str:
        return f"<SimRunner {self._timing}, {self.num_blocks} blocks of {self.block_size}>"

    def run(self, plan: StepPlan) -> list[SampledToken]:
        """Wait until the pass is over."""
        request_ids = frozenset(sequence.request_id for sequence in plan.sequences)
        begin_s = self._clock() if self._request_ids.isdisjoint(request_ids) else self._end_s
        self._request_ids = request_ids
        self._end_s = begin_s + pass_ms(self._timing, plan, self.num_blocks * self.block_size) / 1e3
        self._sleep(max(0.0, self._end_s - self._clock()))
        return [self._answer[draw.index % len(self._answer)] for draw in plan.draws]


def _context_len(path: Path) -> int:
    """As the model's configuration has it; models with a vision part keep that of their text part by itself."""
    try:
        config = orjson.loads(path.read_bytes())
        return int(config.get("text_config", config)["max_position_embeddings"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} names no max_position_embeddings: give max_model_len") from error
