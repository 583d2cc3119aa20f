"""Small traces and fleets, and what became of them."""

from collections.abc import Callable
from random import Random

import pytest

from policies.registry import make_policy
from replay.arrivals import LoadSpec
from replay.simulator.flight import Flight
from replay.simulator.options import Faults, FleetSpec
from replay.simulator.run import Scenario, simulate
from replay.traces.trace import Trace
from worker.timing import Linear

BLOCK_TOKENS = 32  # of make_trace

MakeTrace = Callable[..., Trace]
Run = Callable[..., list[Flight]]


@pytest.fixture
def sessions(make_trace: MakeTrace) -> Trace:
    """Sixty conversations of one to four turns behind one of three system prompts, a little faster than four workers of
    256 blocks like."""
    rng, rows = Random(7), []
    for session in range(60):
        system, at_s = rng.randrange(3), rng.uniform(0, 20)
        names = [system * 100 + place for place in range(8)]
        for turn in range(rng.randrange(1, 5)):
            names = names + [1000 + session * 100 + len(names) + place for place in range(rng.randrange(2, 9))]
            rows.append(
                {
                    "input_tokens": len(names) * BLOCK_TOKENS + rng.randrange(1, BLOCK_TOKENS),
                    "output_tokens": rng.randrange(1, 120),
                    "hash_ids": (*names, 100_000 + len(rows)),
                    "arrival_s": at_s,
                    "session": f"s{session}",
                    "turn": turn,
                    "delay_s": rng.uniform(0, 2) if turn else None,
                }
            )
            at_s += rng.uniform(1, 5)
    return make_trace(sorted(rows, key=lambda row: row["arrival_s"]))


SMALL = FleetSpec(Linear(20_000.0, 10.0), workers=4, blocks=256, block_size=16, max_batched_tokens=256, max_num_seqs=8)


@pytest.fixture
def small() -> FleetSpec:
    return SMALL


@pytest.fixture
def run() -> Run:
    """`run(trace, policy=..., spec=..., load=..., faults=..., ...)` with a small fleet by default."""

    def run(
        trace: Trace,
        *,
        policy: str = "expected_work",
        spec: FleetSpec = SMALL,
        load: LoadSpec = LoadSpec(),  # noqa: B008 - frozen
        faults: Faults = Faults(),  # noqa: B008 - frozen
        seed: int = 0,
        step_by_step: bool = False,
    ) -> list[Flight]:
        return simulate(trace, Scenario(spec, load, faults, seed, step_by_step), make_policy(policy), policy)

    return run
