"""The engine over a runner that really keeps K/V in a pool: a wrong block table or a stale block gives wrong tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from kv_events.hashing import published_hash
from worker.block_manager import BlockManager
from worker.engine import BadPrompt, Engine, PromptTooLong
from worker.plan import ModelSpec, SampledToken, ScheduledSequence, StepPlan
from worker.request import EngineRequest, FinishReason, SamplingParams, TokenOutput
from worker.scheduler import Scheduler

BLOCK_SIZE = 4
EOS = 0
VOCAB = 50
GREEDY = SamplingParams(max_tokens=6, temperature=0)


def next_token(context: Sequence[int], seed: int) -> int:
    return crc32(repr((tuple(context), seed)).encode()) % VOCAB


class KvRunner:
    """Stores each token at its slot; draws from what it reads back through the block table."""

    def __init__(self, num_blocks: int, max_model_len: int = 64) -> None:
        self.model = ModelSpec(VOCAB, max_model_len, frozenset({EOS}))
        self.failures: list[Exception] = []
        self.plans: list[StepPlan] = []
        self._slots: list[tuple[int, int] | None] = [None] * (num_blocks * BLOCK_SIZE)

    def run(self, plan: StepPlan) -> list[SampledToken]:
        self.plans.append(plan)
        if self.failures:
            raise self.failures.pop()
        for scheduled in plan.sequences:  # all K/V are written before any is read, as in each layer of a model
            for position, token_id in zip(scheduled.positions, scheduled.token_ids, strict=True):
                self._slots[self._slot(scheduled, position)] = (position, token_id)
        return [self._draw(scheduled) for scheduled in plan.drawing]

    def _draw(self, scheduled: ScheduledSequence) -> SampledToken:
        assert scheduled.draw is not None
        assert scheduled.draw.params.seed is not None
        context = []
        for position in range(scheduled.positions.stop):
            stored = self._slots[self._slot(scheduled, position)]
            assert stored is not None, "read before it was written"
            assert stored[0] == position
            context.append(stored[1])
        return SampledToken(next_token(context, scheduled.draw.params.seed))

    def _slot(self, scheduled: ScheduledSequence, position: int) -> int:
        return scheduled.block_table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE


@dataclass
class RecordingPublisher:
    batches: list[list[KvEvent]] = field(default_factory=list)

    def publish(self, events: Sequence[KvEvent]) -> None:
        if events:
            self.batches.append(list(events))

    def close(self) -> None:
        pass

    def describe(self) -> dict[str, object]:
        return {}

    def believed(self) -> set[object]:
        """What a listener holds for cached after all batches."""
        known: set[object] = set()
        for event in (event for batch in self.batches for event in batch):
            match event:
                case BlockStored():
                    known |= set(event.block_hashes)
                case BlockRemoved():
                    known -= set(event.block_hashes)
                case AllBlocksCleared():
                    known.clear()
        return known


@dataclass
class Rig:
    """An engine and all that it is made of."""

    blocks: int = 64
    tokens: int = 64
    seqs: int = 8
    caching: bool = True
    max_model_len: int = 64

    def __post_init__(self) -> None:
        self.runner = KvRunner(self.blocks, self.max_model_len)
        self.manager = BlockManager(self.blocks, BLOCK_SIZE, caching=self.caching)
        self.scheduler = Scheduler(self.manager, max_batched_tokens=self.tokens, max_num_seqs=self.seqs)
        self.publisher = RecordingPublisher()
        self.engine = Engine(self.runner, self.scheduler, self.publisher, Random(0))

    def step(self) -> list[TokenOutput]:
        outputs = self.engine.step()
        self.scheduler.check()
        assert self.runner.plans[-1].num_tokens <= self.tokens
        assert len(self.runner.plans[-1].sequences) <= self.seqs
        return outputs

    def finish(self) -> list[TokenOutput]:
        outputs = []
        while self.engine.has_work:
            outputs += self.step()
        return outputs


def request(request_id: str, prompt: Sequence[int], sampling: SamplingParams = GREEDY, **other: str) -> EngineRequest:
    return EngineRequest(request_id, tuple(prompt), replace(sampling, seed=sampling.seed or 0), **other)


def expected(prompt: Sequence[int], sampling: SamplingParams = GREEDY) -> list[int]:
    """The tokens that follow, without any engine."""
    tokens = list(prompt)
    for _ in range(sampling.max_tokens):
        tokens.append(next_token(tokens, sampling.seed or 0))
        if tokens[-1] in sampling.stop_token_ids | ({EOS} - ({EOS} if sampling.ignore_eos else set())):
            break
    return tokens[len(prompt) :]


def texts(outputs: list[TokenOutput]) -> dict[str, list[int]]:
    """Tokens by request; asserts that nothing follows a request's end."""
    tokens: dict[str, list[int]] = {}
    ended: set[str] = set()
    for output in outputs:
        assert output.request_id not in ended
        tokens.setdefault(output.request_id, [])
        if output.token_id is not None:
            tokens[output.request_id].append(output.token_id)
        if output.finish_reason is not None:
            ended.add(output.request_id)
    return tokens


PROMPTS = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=20), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(
    prompts=PROMPTS,
    arrivals=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    blocks=st.integers(8, 24),
    tokens=st.integers(4, 40),
    seqs=st.integers(1, 4),
    caching=st.booleans(),
)
def test_output_depends_on_the_prompt_alone(
    prompts: list[list[int]], arrivals: list[int], blocks: int, tokens: int, seqs: int, caching: bool
) -> None:
    """Whatever the batch, the budget, the pool, preemptions and hits: the same tokens, and each request ends once."""
    rig = Rig(blocks, tokens, seqs, caching)
    outputs = []
    for number, (prompt, steps_between) in enumerate(zip(prompts, arrivals, strict=False)):
        rig.engine.add(request(str(number), prompt))
        for _ in range(steps_between):
            outputs += rig.step() if rig.engine.has_work else []
    outputs += rig.finish()
    assert texts(outputs) == {str(number): expected(prompt) for number, prompt in enumerate(prompts)}
    assert sum(output.finish_reason is not None for output in outputs) == len(prompts)
    assert rig.manager.used_blocks == 0


@settings(max_examples=200, deadline=None)
@given(
    actions=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.lists(st.integers(1, 2), min_size=1, max_size=20)),
            st.tuples(st.sampled_from(["step", "fail", "abort", "reset"]), st.just([])),
        ),
        max_size=40,
    ),
    blocks=st.integers(8, 16),
)
def test_events_tell_what_is_cached_and_every_request_ends_once(
    actions: list[tuple[str, list[int]]], blocks: int
) -> None:
    rig = Rig(blocks, tokens=8, seqs=3)
    outputs: list[TokenOutput] = []
    added = []
    for action, prompt in actions:
        match action:
            case "add":
                added.append(str(len(added)))
                rig.engine.add(request(added[-1], prompt))
            case "abort" if added:
                output = rig.engine.abort(added[len(added) // 2])
                outputs += [output] if output else []
            case "reset":
                rig.engine.reset_prefix_cache()
            case "step" | "fail" if rig.engine.has_work:
                rig.runner.failures = [RuntimeError("boom")] if action == "fail" else []
                outputs += rig.step()
        assert rig.publisher.believed() == {published_hash(digest) for digest in rig.manager.cached_digests()}
    outputs += rig.finish()
    texts(outputs)
    ended = [output.request_id for output in outputs if output.finish_reason is not None]
    assert sorted(ended) == sorted(added)


def test_the_shared_prefix_is_computed_once() -> None:
    rig = Rig()
    rig.engine.add(request("first", [*range(1, 18), 40]))
    rig.finish()
    before = rig.engine.stats()
    rig.engine.add(request("second", [*range(1, 18), 41]))
    outputs = rig.finish()
    assert {output.cached_tokens for output in outputs} == {16}
    stats = rig.engine.stats()
    assert (stats.prompt_tokens_queried, stats.prompt_tokens_hit) == (34, 16)
    assert stats.computed_tokens - before.computed_tokens == 2 + len(outputs) - 1


@pytest.mark.parametrize("other", [{"cache_salt": "s"}, {"adapter": "a"}])
def test_salt_and_adapter_separate_caches(other: dict[str, str]) -> None:
    rig = Rig()
    rig.engine.add(request("first", range(1, 18)))
    rig.finish()
    rig.engine.add(request("second", range(1, 18), **other))
    assert {output.cached_tokens for output in rig.finish()} == {0}


def test_end_tokens_stop_and_limits_cut() -> None:
    rig = Rig()
    endless = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
    free = expected([5], endless)
    rig.engine.add(request("limit", [5], replace(endless, max_tokens=3)))
    rig.engine.add(request("stop", [5], replace(endless, stop_token_ids=frozenset({free[4]}))))
    outputs = rig.finish()
    assert texts(outputs) == {"limit": free[:3], "stop": free[: free.index(free[4]) + 1]}
    reasons = {output.request_id: output.finish_reason for output in outputs if output.finish_reason}
    assert reasons == {"limit": FinishReason.LENGTH, "stop": FinishReason.STOP}


def test_the_models_end_token_stops_unless_ignored() -> None:
    prompt = next([first] for first in range(1, VOCAB) if EOS in expected([first], SamplingParams(max_tokens=20)))
    rig = Rig()
    rig.engine.add(request("heeds", prompt, SamplingParams(max_tokens=20)))
    rig.engine.add(request("ignores", prompt, SamplingParams(max_tokens=20, ignore_eos=True)))
    spoken = texts(rig.finish())
    assert spoken["heeds"][-1] == EOS
    assert len(spoken["ignores"]) == 20


def test_generation_ends_at_the_context_even_if_more_is_asked() -> None:
    rig = Rig(blocks=4, max_model_len=64)
    assert rig.engine.max_model_len == 16, "the pool is the smaller"
    rig.engine.add(request("a", range(1, 13), SamplingParams(max_tokens=99, ignore_eos=True)))
    outputs = rig.finish()
    assert len(outputs) == 4
    assert outputs[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(("blocks", "name"), [(4, "the KV cache pool is 16"), (64, "the model's context is 64")])
def test_too_long_prompts_are_refused_with_both_numbers(blocks: int, name: str) -> None:
    rig = Rig(blocks=blocks, max_model_len=64)
    limit = rig.engine.max_model_len
    with pytest.raises(PromptTooLong, match=f"{limit} tokens, but {name} tokens") as refusal:
        rig.engine.add(request("a", [1] * limit))
    assert (refusal.value.prompt_tokens, refusal.value.limit_tokens) == (limit, limit)
    rig.engine.add(request("fits", [1] * (limit - 1)))


@pytest.mark.parametrize(
    ("prompt", "reason"), [((), "empty"), ((1, VOCAB), "vocabulary, 0 to 49"), ((-1, 1), "vocabulary, 0 to 49")]
)
def test_prompts_that_cannot_be_computed_are_refused(prompt: tuple[int, ...], reason: str) -> None:
    rig = Rig()
    with pytest.raises(BadPrompt, match=reason):
        rig.engine.add(request("a", prompt))
    assert not rig.engine.has_work


def test_a_failing_step_ends_its_requests_only() -> None:
    rig = Rig(seqs=1)
    rig.engine.add(request("victim", [1, 2, 3, 4, 5]))
    rig.engine.add(request("next", [1, 2, 3, 4, 5]))
    rig.runner.failures = [RuntimeError("out of memory")]
    [output] = rig.step()
    assert (output.request_id, output.finish_reason) == ("victim", FinishReason.ERROR)
    assert output.error == "RuntimeError: out of memory"
    assert texts(rig.finish()) == {"next": expected([1, 2, 3, 4, 5])}


def test_abort_answers_once() -> None:
    rig = Rig(seqs=1)
    for name in ("running", "waiting"):
        rig.engine.add(request(name, [1, 2], replace(GREEDY, ignore_eos=True)))
    rig.step()
    for name in ("running", "waiting"):
        output = rig.engine.abort(name)
        assert output is not None
        assert (output.request_id, output.token_id, output.finish_reason) == (name, None, FinishReason.ABORT)
        assert rig.engine.abort(name) is None
    assert not rig.engine.has_work


def test_requests_without_a_seed_draw_differently_but_repeatably() -> None:
    def draw() -> dict[str, list[int]]:
        rig = Rig()
        for name in "ab":
            rig.engine.add(EngineRequest(name, (1, 2, 3), SamplingParams(max_tokens=6, ignore_eos=True)))
        return texts(rig.finish())

    first = draw()
    assert first["a"] != first["b"]
    assert first == draw()


def test_one_batch_of_events_a_step() -> None:
    rig = Rig(tokens=8)
    rig.engine.add(request("a", range(1, 17), replace(GREEDY, max_tokens=1)))
    rig.finish()
    assert [[type(event) for event in batch] for batch in rig.publisher.batches] == [[BlockStored]] * 2


def test_reset_is_refused_while_a_request_runs() -> None:
    rig = Rig()
    rig.engine.add(request("a", range(1, 18)))
    rig.step()
    assert not rig.engine.reset_prefix_cache()
    rig.finish()
    assert rig.engine.reset_prefix_cache()
    assert rig.publisher.batches[-1] == [AllBlocksCleared()], "told at once, not with the next request"
    rig.engine.add(request("b", range(1, 18)))
    assert {output.cached_tokens for output in rig.finish()} == {0}


def test_stats_of_a_running_engine() -> None:
    rig = Rig(blocks=8, seqs=1)
    rig.engine.add(request("a", range(1, 10)))
    rig.engine.add(request("b", range(1, 10)))
    rig.step()
    stats = rig.engine.stats()
    assert (stats.running, stats.waiting, stats.kv_usage) == (1, 1, 3 / 8)
    assert (stats.computed_tokens, stats.generated_tokens, stats.preemptions) == (9, 1, 0)
