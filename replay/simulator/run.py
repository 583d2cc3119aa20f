"""A trace through a simulated fleet, under a policy or from one central queue."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from policies.views import Policy
from replay.arrivals import LoadSpec
from replay.simulator.agenda import Agenda
from replay.simulator.central import CentralQueue
from replay.simulator.flight import Flight
from replay.simulator.options import Faults, FleetSpec
from replay.simulator.routed import Routed
from replay.simulator.simulation import Simulation
from replay.traces.trace import Trace
from worker.block_manager import BlockManager


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that is the same for every policy. The same scenario gives the same result, bit by bit."""

    spec: FleetSpec
    load: LoadSpec
    faults: Faults
    seed: int = 0
    step_by_step: bool = False


def simulate(
    trace: Trace, scenario: Scenario, policy: Policy, name: str, *, on_ended: Callable[[], object] = lambda: None
) -> list[Flight]:
    """What became of each request, in the order of the trace; `on_ended` is called once for each."""
    agenda, spec = Agenda(), scenario.spec
    routed = Routed(policy, name, spec, scenario.faults, agenda, requests=len(trace.requests), seed=scenario.seed)
    simulation = Simulation(
        trace,
        spec,
        scenario.load,
        routed,
        agenda,
        make_blocks=lambda: BlockManager(spec.blocks, spec.block_size),
        restarts=scenario.faults.restarts,
        step_by_step=scenario.step_by_step,
        on_ended=on_ended,
    )
    with _without_garbage_collection():
        return simulation.run()


def simulate_central(
    trace: Trace, scenario: Scenario, *, on_ended: Callable[[], object] = lambda: None
) -> list[Flight]:
    """The same requests from one central queue, over one cache of the fleet's size that all workers share.

    Nothing goes wrong in it. Its blocks are at least as large as the trace's: nothing smaller is ever shared. It never
    goes step by step: workers that share a pool feel when the others take from it.
    """
    block_size = max(scenario.spec.block_size, trace.block_tokens)
    spec = replace(scenario.spec, block_size=block_size, blocks=max(1, scenario.spec.worker_tokens // block_size))
    pool = BlockManager(spec.workers * spec.blocks, block_size)
    simulation = Simulation(
        trace,
        spec,
        scenario.load,
        CentralQueue(spec),
        Agenda(),
        make_blocks=lambda: pool,
        restarts=(),
        step_by_step=False,
        on_ended=on_ended,
    )
    with _without_garbage_collection():
        return simulation.run()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A run makes millions of objects, and no cycle but the one that it is itself: to look for others takes a tenth of
    its time. That one is collected when the next begins."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
