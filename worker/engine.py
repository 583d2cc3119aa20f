"""The engine: requests in, tokens out, one step at a time. It knows neither torch nor sockets nor the clock.

Whoever drives it calls `step` while `has_work`, and everything from one thread. Every request added ends with exactly
one output that has a finish reason, from `step` or from `abort`.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Row
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from kv_events.publisher import EventPublisher
from worker.plan import Runner, SampledToken, StepPlan
from worker.request import EngineRequest, FinishReason, SamplingParams, TokenOutput
from worker.scheduler import Scheduler, Sequence

logger = logging.getLogger(__name__)


class BadPrompt(ValueError):
    """The engine cannot compute this prompt. The message says why."""


class PromptTooLong(BadPrompt):
    """The prompt leaves no room for a single token within `limit_tokens`."""

    def __init__(self, prompt_tokens: int, limit_tokens: int, limit_name: str) -> None:
        super().__init__(
            f"the prompt has {prompt_tokens} tokens, but {limit_name} is {limit_tokens} tokens "
            "and at least one must be left to generate"
        )
        self.prompt_tokens = prompt_tokens
        self.limit_tokens = limit_tokens


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine does now, and what it did since its start. Token counts of prompts are of first admissions:
    `prompt_tokens_queried` leaves out the last token of each, which is always computed."""

    running: int
    waiting: int
    kv_usage: float  # share of the blocks that running sequences hold
    prompt_tokens_queried: int
    prompt_tokens_hit: int
    computed_tokens: int
    generated_tokens: int
    preemptions: int


class Engine:
    """`rng` gives a seed to every request that brings none."""

    def __init__(self, runner: Runner, scheduler: Scheduler, publisher: EventPublisher, rng: Random) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._publisher = publisher
        self._rng = rng
        self._generated_tokens = 0

    def __repr__(self) -> str:
        return f"<Engine {self._scheduler!r}>"

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together that one sequence may have: what the model and the pool both allow."""
        return min(self._runner.model.max_model_len, self._pool_tokens)

    @property
    def running_tokens(self) -> list[int]:
        """Tokens that each running sequence has in the cache."""
        return [sequence.computed for sequence in self._scheduler.running]

    @property
    def has_work(self) -> bool:
        return bool(self._scheduler.num_running or self._scheduler.num_waiting)

    def add(self, request: EngineRequest) -> None:
        """Queue a request. Raises BadPrompt, or ValueError if a request of this id has not ended yet."""
        self._check_prompt(request.prompt_token_ids)
        self._scheduler.add(replace(request, sampling=self._completed(request)))

    def abort(self, request_id: str) -> TokenOutput | None:
        """End a request now. Its last output, or None if it is unknown or has ended already."""
        sequence = self._scheduler.get(request_id)
        return None if sequence is None else self._end(sequence, FinishReason.ABORT)

    def step(self) -> list[TokenOutput]:
        """One pass through the model and what it brought. If it fails, the requests of that pass end with ERROR."""
        plan = self._scheduler.schedule()
        outputs = self._run(plan)
        self._publisher.publish(self._scheduler.blocks.take_events())
        return outputs

    def steady_steps(self) -> int:
        """For how many steps from now each running sequence decodes one token and none is started or preempted, as long
        as none draws a token that stops it. None ends before the last of these steps."""
        steps = self._scheduler.steady_steps()
        return min([steps, *(sequence.left for sequence in self._scheduler.running)])

    def advance(self, steps: int, draw: Callable[[EngineRequest], int]) -> list[TokenOutput]:
        """Do at most `steady_steps()` steps at once and without the runner: `draw` says which token a request draws at
        each of them, none that stops it. Returns the last outputs of those that end."""
        running = self._scheduler.running
        self._scheduler.advance(steps, draw)
        self._generated_tokens += steps * len(running)
        ended = [sequence for sequence in running if sequence.left <= 0]
        outputs = [self._output(sequence, SampledToken(draw(sequence.request))) for sequence in ended]
        self._publisher.publish(self._scheduler.blocks.take_events())
        return outputs

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; refused (False) while a request runs."""
        cleared = self._scheduler.blocks.clear()
        self._publisher.publish(self._scheduler.blocks.take_events())
        return cleared

    def stats(self) -> EngineStats:
        scheduler, blocks = self._scheduler, self._scheduler.blocks
        return EngineStats(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            kv_usage=blocks.used_blocks / blocks.num_blocks,
            prompt_tokens_queried=scheduler.queried_tokens,
            prompt_tokens_hit=scheduler.hit_tokens,
            computed_tokens=scheduler.computed_tokens,
            generated_tokens=self._generated_tokens,
            preemptions=scheduler.preemptions,
        )

    @property
    def _pool_tokens(self) -> int:
        return self._scheduler.blocks.num_blocks * self._scheduler.blocks.block_size

    def _check_prompt(self, token_ids: Row[int]) -> None:
        model = self._runner.model
        if not token_ids:
            raise BadPrompt("the prompt is empty")
        values = np.asarray(token_ids)
        if values.min() < 0 or values.max() >= model.vocab_size:
            raise BadPrompt(f"the prompt has token ids outside the model's vocabulary, 0 to {model.vocab_size - 1}")
        if len(token_ids) >= self.max_model_len:
            of_model = model.max_model_len <= self._pool_tokens
            limit_name = "the model's context" if of_model else "the KV cache pool"
            raise PromptTooLong(len(token_ids), self.max_model_len, limit_name)

    def _completed(self, request: EngineRequest) -> SamplingParams:
        """The request's sampling with what it left open: a seed, the model's end tokens, the room that there is."""
        sampling = request.sampling
        eos = frozenset() if sampling.ignore_eos else self._runner.model.eos_token_ids
        return replace(
            sampling,
            max_tokens=min(sampling.max_tokens, self.max_model_len - len(request.prompt_token_ids)),
            stop_token_ids=sampling.stop_token_ids | eos,
            seed=self._rng.getrandbits(32) if sampling.seed is None else sampling.seed,
        )

    def _run(self, plan: StepPlan) -> list[TokenOutput]:
        try:
            tokens = self._runner.run(plan)
        except Exception as error:  # whatever it was, the requests of other steps are well
            logger.exception("a step of %d tokens failed", plan.num_tokens)
            return self._fail(plan, error)
        return self._complete(plan, tokens)

    def _complete(self, plan: StepPlan, tokens: list[SampledToken]) -> list[TokenOutput]:
        outputs = []
        for scheduled, token in zip(plan.drawing, tokens, strict=True):
            sequence = self._scheduler.get(scheduled.request_id)
            assert sequence is not None, "a sequence ended while its step ran"
            outputs.append(self._append(sequence, token))
        return outputs

    def _append(self, sequence: Sequence, token: SampledToken) -> TokenOutput:
        sequence.chain.append(token.token_id)
        self._generated_tokens += 1
        return self._output(sequence, token)

    def _output(self, sequence: Sequence, token: SampledToken) -> TokenOutput:
        """The news of the sequence's newest token, with which it may end."""
        reason = _finish_reason(sequence)
        if reason is not None:
            self._scheduler.remove(sequence.request.request_id)
        return TokenOutput(
            request_id=sequence.request.request_id,
            token_id=token.token_id,
            cached_tokens=sequence.cached_tokens or 0,
            logprob=token.logprob,
            top_logprobs=token.top_logprobs,
            finish_reason=reason,
        )

    def _fail(self, plan: StepPlan, error: Exception) -> list[TokenOutput]:
        self._scheduler.blocks.forget_unconfirmed()
        sequences = [self._scheduler.get(scheduled.request_id) for scheduled in plan.sequences]
        message = f"{type(error).__name__}: {error}"
        return [self._end(sequence, FinishReason.ERROR, message) for sequence in sequences if sequence]

    def _end(self, sequence: Sequence, reason: FinishReason, error: str | None = None) -> TokenOutput:
        request_id = sequence.request.request_id
        self._scheduler.remove(request_id)
        return TokenOutput(request_id, None, sequence.cached_tokens or 0, finish_reason=reason, error=error)


def _finish_reason(sequence: Sequence) -> FinishReason | None:
    sampling = sequence.request.sampling
    if sequence.chain.token_ids[-1] in sampling.stop_token_ids:
        return FinishReason.STOP
    return None if sequence.left > 0 else FinishReason.LENGTH
