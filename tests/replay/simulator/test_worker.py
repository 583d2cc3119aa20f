"""One simulated worker: how long its passes take, and that many at once are the same as one by one."""

from collections.abc import Sequence

import pytest

from kv_events.events import KvEvent
from replay.simulator.agenda import Agenda, Rank
from replay.simulator.options import FleetSpec
from replay.simulator.worker import SimulatedWorker
from worker.block_manager import BlockManager
from worker.request import EngineRequest, SamplingParams, TokenOutput
from worker.timing import Linear

SPEC = FleetSpec(Linear(1000.0, 10.0), workers=1, blocks=64, block_size=4, max_batched_tokens=100, max_num_seqs=4)


class Bench:
    """A worker, and what it says when."""

    def __init__(self, spec: FleetSpec = SPEC, *, step_by_step: bool = False) -> None:
        self.agenda = Agenda()
        self.outputs: list[tuple[float, str, bool]] = []
        self.events: list[tuple[float, list[KvEvent]]] = []
        self.worker = SimulatedWorker(
            0,
            spec,
            self.agenda,
            make_blocks=lambda: BlockManager(spec.blocks, spec.block_size),
            publish=lambda events, now: self.events.append((now, list(events))) if events else None,
            on_outputs=self.heard,
            step_by_step=step_by_step,
        )

    def heard(self, worker: int, outputs: Sequence[TokenOutput], now: float) -> None:
        self.outputs += [(round(now, 9), each.request_id, each.finish_reason is not None) for each in outputs]

    def send(self, name: str, at_s: float, prompt: int, answer: int, first: int | None = None) -> None:
        start = int(at_s * 1e6) if first is None else first
        sampling = SamplingParams(max_tokens=answer, seed=(1 << 31) + len(name) + ord(name[0]), ignore_eos=True)
        request = EngineRequest(name, range(start, start + prompt), sampling)
        self.agenda.at(at_s, Rank.REQUEST_COMES, 0, lambda now: self.worker.add(request, now))

    def run(self) -> list[tuple[float, str, bool]]:
        self.agenda.run()
        return self.outputs


def ended(outputs: list[tuple[float, str, bool]]) -> list[tuple[float, str]]:
    return [(at_s, name) for at_s, name, finished in outputs if finished]


@pytest.mark.parametrize("step_by_step", [False, True])
def test_a_request_alone(step_by_step: bool) -> None:
    bench = Bench(step_by_step=step_by_step)
    bench.send("a", 1.0, prompt=50, answer=3)
    outputs = bench.run()
    assert outputs[0] == (1.06, "a", False), "50 ms of prefill, and 10 ms for the first token"
    assert outputs[-1] == (1.08, "a", True)


def test_a_long_prompt_takes_passes_within_the_budget() -> None:
    bench = Bench()
    bench.send("a", 0.0, prompt=150, answer=1)
    assert bench.run() == [(pytest.approx(0.1 + 0.05 + 0.01), "a", True)], "no token from the first chunk, no decode"


@pytest.mark.parametrize("step_by_step", [False, True])
def test_who_comes_during_a_pass_waits_for_its_end(step_by_step: bool) -> None:
    bench = Bench(step_by_step=step_by_step)
    bench.send("a", 0.0, prompt=10, answer=100)  # first token at 20 ms, then one every 10 ms
    bench.send("b", 0.055, prompt=30, answer=2)
    outputs = bench.run()
    assert (0.1, "b", False) in outputs, "the pass until 60 ms, 30 ms of prefill, 10 ms to decode"
    assert ended(outputs) == [(0.11, "b"), (pytest.approx(0.02 + 99 * 0.01 + 0.03), "a")]


@pytest.mark.parametrize("step_by_step", [False, True])
def test_who_comes_just_as_a_pass_ends_waits_for_the_next(step_by_step: bool) -> None:
    bench = Bench(FleetSpec(Linear(1000.0, 500.0), blocks=64, block_size=4), step_by_step=step_by_step)
    bench.send("a", 0.0, prompt=500 // 4, answer=4)  # passes end at 0.625, 1.125, 1.625, 2.125: exact in binary
    bench.send("b", 1.125, prompt=125, answer=1)
    assert (2.25, "b", True) in bench.run()


def test_a_cached_prefix_is_not_computed_again() -> None:
    bench = Bench()
    bench.send("a", 0.0, prompt=41, answer=1, first=7)
    bench.send("b", 1.0, prompt=41, answer=1, first=7)
    assert bench.run() == [(pytest.approx(0.051), "a", True), (pytest.approx(1.011), "b", True)]


def test_events_come_out_when_the_pass_ends() -> None:
    bench = Bench()
    bench.send("a", 0.0, prompt=8, answer=1)
    bench.run()
    [(at_s, [stored])] = bench.events
    assert at_s == pytest.approx(0.018)
    assert tuple(stored.token_ids) == tuple(range(8))  # type: ignore[union-attr]


def test_a_restart_loses_all_and_says_nothing() -> None:
    bench = Bench()
    bench.send("a", 0.0, prompt=20, answer=50, first=7)
    bench.agenda.at(0.2, Rank.WORKER_RESTARTS, 0, lambda now: bench.worker.restart())
    bench.send("b", 1.0, prompt=20, answer=1, first=7)
    assert ended(bench.run()) == [(1.03, "b")], "nothing of a, and nothing cached"


@pytest.mark.parametrize("blocks", [12, 20, 64])
def test_at_once_and_step_by_step_agree(blocks: int) -> None:
    """Also where the pool is short and the newest are preempted."""
    spec = FleetSpec(Linear(1000.0, 7.0), blocks=blocks, block_size=4, max_batched_tokens=40, max_num_seqs=3)
    heard = []
    for step_by_step in (False, True):
        bench = Bench(spec, step_by_step=step_by_step)
        for number in range(12):
            bench.send("abcdefghijkl"[number], number * 0.023, prompt=5 + number * 2, answer=1 + number * 3 % 17)
        outputs = ended(bench.run())
        assert len(outputs) == 12
        heard.append((outputs, [(at_s, _sorted(events)) for at_s, events in bench.events]))
    assert heard[0] == heard[1]


def _sorted(events: list[KvEvent]) -> list[str]:
    """What was stored and removed, block by block; the order within a stretch is nobody's business."""
    return sorted(f"{type(event).__name__} {name!r}" for event in events for name in getattr(event, "block_hashes", ()))
