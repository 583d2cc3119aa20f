"""Scheduling decisions on their own: who runs, how far, who waits, who is preempted."""

import pytest

from worker.block_manager import BlockManager
from worker.plan import Draw, StepPlan
from worker.request import EngineRequest, SamplingParams
from worker.scheduler import Scheduler

BLOCK_SIZE = 4


def scheduler(blocks: int = 32, *, tokens: int = 16, seqs: int = 4, caching: bool = True) -> Scheduler:
    manager = BlockManager(blocks, BLOCK_SIZE, caching=caching)
    return Scheduler(manager, max_batched_tokens=tokens, max_num_seqs=seqs)


def request(request_id: str, prompt_tokens: int, first_token: int = 0) -> EngineRequest:
    """Prompts of different `first_token` share nothing."""
    return EngineRequest(
        request_id, tuple(range(first_token, first_token + prompt_tokens)), SamplingParams(max_tokens=99)
    )


def step(under_test: Scheduler) -> dict[str, int]:
    """Schedule, let every drawing sequence get a token; tokens scheduled by request, in order."""
    plan = under_test.schedule()
    for scheduled in plan.drawing:
        sequence = under_test.get(scheduled.request_id)
        assert sequence is not None
        sequence.chain.append(1000)
    under_test.blocks.take_events()
    under_test.check()
    return computed(plan)


def computed(plan: StepPlan) -> dict[str, int]:
    return {scheduled.request_id: len(scheduled.token_ids) for scheduled in plan.sequences}


def test_a_long_prompt_is_computed_in_chunks() -> None:
    under_test = scheduler(tokens=16)
    under_test.add(request("a", 40))
    plans = [under_test.schedule() for _ in range(3)]
    assert [computed(plan) for plan in plans] == [{"a": 16}, {"a": 16}, {"a": 8}]
    assert [scheduled.start for plan in plans for scheduled in plan.sequences] == [0, 16, 32]
    assert [bool(plan.drawing) for plan in plans] == [False, False, True]


def test_only_the_last_chunk_draws_and_says_which_token() -> None:
    under_test = scheduler()
    under_test.add(request("a", 3))
    [scheduled] = under_test.schedule().sequences
    assert scheduled.draw == Draw(SamplingParams(max_tokens=99), 0)
    sequence = under_test.get("a")
    assert sequence is not None
    sequence.chain.append(7)
    [scheduled] = under_test.schedule().sequences
    assert (tuple(scheduled.token_ids), scheduled.start) == ((7,), 3)
    assert scheduled.draw == Draw(SamplingParams(max_tokens=99), 1)


def test_running_sequences_come_before_waiting_ones() -> None:
    under_test = scheduler(tokens=10)
    under_test.add(request("a", 4))
    assert step(under_test) == {"a": 4}
    under_test.add(request("b", 20, first_token=100))
    assert step(under_test) == {"a": 1, "b": 9}
    under_test.add(request("c", 4, first_token=200))
    assert step(under_test) == {"a": 1, "b": 9}, "b's rest takes what is left"
    assert list(step(under_test).items()) == [("a", 1), ("b", 2), ("c", 4)]


def test_no_more_than_max_num_seqs_run() -> None:
    under_test = scheduler(seqs=2)
    for name in "abc":
        under_test.add(request(name, 4))
    assert list(step(under_test)) == ["a", "b"]
    under_test.remove("a")
    assert list(step(under_test)) == ["b", "c"]


def test_admission_ends_at_the_first_that_does_not_fit() -> None:
    under_test = scheduler(blocks=6, tokens=64)
    under_test.add(request("a", 12))
    under_test.add(request("large", 16, first_token=100))
    under_test.add(request("small", 4, first_token=200))
    assert list(step(under_test)) == ["a"], "small would fit, but large came first"


def test_cached_blocks_count_as_room() -> None:
    """A prompt of five blocks in a pool of six, three of them held: it fits because two of them are its own prefix."""
    under_test = scheduler(blocks=6, tokens=64)
    under_test.add(request("a", 11))
    step(under_test)
    under_test.add(request("b", 19))
    assert step(under_test) == {"a": 1, "b": 11}
    under_test.add(request("c", 4, first_token=100))
    assert "c" not in step(under_test)


def test_the_newest_is_preempted_and_comes_back_first() -> None:
    under_test = scheduler(blocks=4, tokens=64)
    under_test.add(request("old", 7))
    under_test.add(request("new", 7, first_token=100))
    step(under_test)
    under_test.add(request("later", 4, first_token=200))
    step(under_test)
    assert step(under_test) == {"old": 1}, "both need a third block: the newer one gives up its own"
    assert (under_test.num_running, under_test.num_waiting, under_test.preemptions) == (1, 2, 1)
    under_test.remove("old")
    assert list(step(under_test).items()) == [("new", 5), ("later", 4)], "its first block is still cached"


def test_a_preempted_sequence_keeps_its_first_count_of_cached_tokens() -> None:
    under_test = scheduler(blocks=4, tokens=64)
    under_test.add(request("old", 7))
    under_test.add(request("new", 7, first_token=100))
    for _ in range(3):
        step(under_test)
    under_test.remove("old")
    step(under_test)
    sequence = under_test.get("new")
    assert sequence is not None
    assert sequence.cached_tokens == 0
    assert (under_test.queried_tokens, under_test.hit_tokens) == (12, 0)


def test_the_oldest_may_preempt_all_others() -> None:
    under_test = scheduler(blocks=4, tokens=64)
    under_test.add(request("old", 8))
    under_test.add(request("b", 4, first_token=100))
    under_test.add(request("c", 4, first_token=200))
    assert step(under_test) == {"old": 8, "b": 4, "c": 4}
    assert step(under_test) == {"old": 1}, "each needs a block more: c gives its own to old, b finds none"
    assert (under_test.num_running, under_test.num_waiting, under_test.preemptions) == (1, 2, 2)


def test_equal_prompts_in_one_step_are_computed_once() -> None:
    under_test = scheduler(tokens=64)
    under_test.add(request("a", 18))
    under_test.add(request("b", 18))
    plan = under_test.schedule()
    assert computed(plan) == {"a": 18, "b": 2}
    a, b = plan.sequences
    assert a.block_table[:4] == b.block_table[:4]
    assert a.block_table[4] != b.block_table[4]


def test_removed_while_waiting_or_running() -> None:
    under_test = scheduler(seqs=1)
    under_test.add(request("a", 4))
    under_test.add(request("b", 4))
    step(under_test)
    under_test.remove("b")
    under_test.remove("a")
    under_test.check()
    assert (under_test.num_running, under_test.num_waiting, under_test.blocks.used_blocks) == (0, 0, 0)


def test_an_id_in_use_is_refused() -> None:
    under_test = scheduler()
    under_test.add(request("a", 4))
    with pytest.raises(ValueError, match="'a' is in use"):
        under_test.add(request("a", 4))


@pytest.mark.parametrize(("tokens", "seqs"), [(3, 4), (4, 0), (0, 0)])
def test_impossible_limits_are_refused(tokens: int, seqs: int) -> None:
    with pytest.raises(ValueError, match="max_batched_tokens must be at least max_num_seqs"):
        scheduler(tokens=tokens, seqs=seqs)
