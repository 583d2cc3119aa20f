"""Many decode steps at once leave an engine as the same steps one by one do."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_events.events import BlockRemoved, BlockStored, EngineHash, KvEvent
from worker.block_manager import BlockManager
from worker.engine import Engine
from worker.plan import ModelSpec, SampledToken, StepPlan
from worker.request import EngineRequest, FinishReason, SamplingParams, TokenOutput
from worker.scheduler import Scheduler

BLOCK_SIZE = 4


def draw(request: EngineRequest) -> int:
    """Every request has one token that it always gets."""
    assert request.sampling.seed is not None
    return request.sampling.seed


class SteadyRunner:
    model = ModelSpec(1000, 1000, frozenset())

    def run(self, plan: StepPlan) -> list[SampledToken]:
        return [SampledToken(each.draw.params.seed or 0) for each in plan.sequences if each.draw]


class Listener:
    """What is cached, as far as was said."""

    def __init__(self) -> None:
        self.believed: set[EngineHash] = set()

    def publish(self, events: Sequence[KvEvent]) -> None:
        for event in events:
            if isinstance(event, BlockStored):
                self.believed |= set(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.believed -= set(event.block_hashes)

    def close(self) -> None:
        pass

    def describe(self) -> dict[str, object]:
        return {}


class Rig:
    def __init__(self, blocks: int, tokens: int = 32, seqs: int = 4) -> None:
        self.listener = Listener()
        self.scheduler = Scheduler(BlockManager(blocks, BLOCK_SIZE), max_batched_tokens=tokens, max_num_seqs=seqs)
        self.engine = Engine(SteadyRunner(), self.scheduler, self.listener, Random(0))

    def add(self, number: int, prompt: int, answer: int) -> None:
        sampling = SamplingParams(answer, seed=500 + number, ignore_eos=True)
        self.engine.add(EngineRequest(str(number), tuple(range(number % 3, number % 3 + prompt)), sampling))

    def state(self) -> object:
        running = [
            (each.request.request_id, each.computed, list(each.chain.token_ids)) for each in self.scheduler.running
        ]
        return running, self.listener.believed, self.engine.stats()


def ended(outputs: Sequence[TokenOutput]) -> list[TokenOutput]:
    return [output for output in outputs if output.finish_reason]


REQUESTS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=8)


@settings(max_examples=150, deadline=None)
@given(REQUESTS, st.integers(18, 40), st.randoms(use_true_random=False))
def test_at_once_is_as_one_by_one(requests: list[tuple[int, int]], blocks: int, rng: Random) -> None:
    at_once, one_by_one = Rig(blocks), Rig(blocks)
    for number, (prompt, answer) in enumerate(requests):
        at_once.add(number, prompt, answer)
        one_by_one.add(number, prompt, answer)
    while one_by_one.engine.has_work:
        steady = at_once.engine.steady_steps()
        steps = rng.randint(1, steady) if steady else 1
        outputs = at_once.engine.advance(steps, draw) if steady else at_once.engine.step()
        stepped = [output for _ in range(steps) for output in one_by_one.engine.step()]
        assert ended(outputs) == ended(stepped)
        assert at_once.state() == one_by_one.state()
        at_once.scheduler.check()
    assert not at_once.engine.has_work


def test_steady_until_the_first_ends() -> None:
    rig = Rig(blocks=64)
    rig.add(0, 10, 5)
    rig.add(1, 10, 8)
    assert rig.engine.steady_steps() == 0, "two prompts to compute"
    rig.engine.step()
    assert rig.engine.steady_steps() == 4
    [output] = rig.engine.advance(4, draw)
    assert (output.request_id, output.token_id, output.finish_reason) == ("0", 500, FinishReason.LENGTH)
    assert rig.engine.steady_steps() == 3


def test_not_steady_while_somebody_could_be_admitted() -> None:
    rig = Rig(blocks=64)
    rig.add(0, 10, 50)
    rig.engine.step()
    rig.add(1, 10, 50)
    assert rig.engine.steady_steps() == 0


def test_steady_while_nobody_waiting_has_room() -> None:
    """And each step spares the search for its cached prefix, until a block comes free."""
    rig = Rig(blocks=16)
    rig.add(0, 30, 30)
    rig.add(1, 40, 1)
    rig.engine.step()
    assert (rig.engine.stats().waiting, rig.engine.steady_steps()) == (1, 29)
    assert rig.engine.advance(29, draw)
    assert rig.engine.steady_steps() == 0, "the first has ended: now there is room"


@pytest.mark.parametrize("prompt", [5, 9])
def test_a_prompts_last_token_alone_is_no_decode(prompt: int) -> None:
    """All the rest of it is cached, but its first token has not come."""
    rig = Rig(blocks=64, tokens=4, seqs=1)
    rig.add(0, prompt, 3)
    while rig.scheduler.running == [] or rig.scheduler.running[0].pending > 1:
        rig.engine.step()
    assert rig.engine.steady_steps() == 0
