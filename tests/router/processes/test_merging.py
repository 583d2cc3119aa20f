"""What several processes see and remember, as one answer."""

from dataclasses import replace

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from policies.views import Candidates
from router.processes.merging import JointScrape, merged_decisions, merged_workers
from router.records import CacheState, Decision, SlotReport, WorkerReport

SLOT = SlotReport("a:1", 0, CacheState.LIVE, 0, 16, 7, 0, 0, 0, 0, 2, 30.0, 100, 1000.0)
WORKER = WorkerReport("a:1", "http://a:1", "up", False, None, ("m",), (SLOT,))


def decision(name: str, at_s: float) -> Decision:
    none = np.zeros(0)
    candidates = Candidates((), *[none] * (len(Candidates._fields) - 1))
    return Decision(name, at_s, "m", "random", 1, candidates, (), none, "a:1", 0)


def test_what_all_agree_on_is_told_once() -> None:
    assert merged_workers({0: [WORKER], 1: [WORKER]}) == [WORKER]


def test_a_worker_is_as_good_as_the_process_sees_it_that_sees_it_worst() -> None:
    down = replace(WORKER, health="down", reason="refused")
    syncing = replace(WORKER, slots=(replace(SLOT, cache_state=CacheState.SYNCING, blocks=3),))
    (merged,) = merged_workers({0: [syncing], 1: [WORKER], 2: [down]})
    assert (merged.health, merged.reason) == ("down", "process 2: refused")
    (slot,) = merged.slots
    assert (slot.cache_state, slot.blocks) == (CacheState.SYNCING, 3)


def test_where_all_agree_no_process_is_blamed() -> None:
    down = replace(WORKER, health="down", reason="refused")
    assert merged_workers({0: [down], 1: [down]})[0].reason == "refused"


def test_slots_are_told_also_where_another_process_has_no_slot_yet() -> None:
    joining = replace(WORKER, health="joining", reason="not probed yet", slots=())
    (merged,) = merged_workers({0: [joining], 1: [WORKER]})
    assert (merged.health, [slot.active_requests for slot in merged.slots]) == ("joining", [2])


def test_a_worker_that_one_process_has_is_listed_and_one_that_leaves_is_draining() -> None:
    other = replace(WORKER, id="b:1", draining=True)
    assert [(w.id, w.draining) for w in merged_workers({0: [WORKER], 1: [WORKER, other]})] == [
        ("a:1", False),
        ("b:1", True),
    ]


def test_decisions_are_merged_newest_first() -> None:
    logs = [[(decision("d", 4.0), None), (decision("a", 1.0), None)], [(decision("c", 3.0), None)], []]
    assert [logged.request_id for logged, _ in merged_decisions(logs, 2)] == ["d", "c"]


def test_samples_are_told_apart_and_who_did_not_answer_is_named() -> None:
    registries = [CollectorRegistry(), CollectorRegistry()]
    for registry in registries:
        Counter("asked", "Asked.", ["slot"], registry=registry).labels("a:1").inc(2)
        Gauge("warmroute_slot_active_requests", "Of all.", ["slot"], registry=registry).labels("a:1").set(5)
    scrapes = {2 * i: list(registry.collect()) for i, registry in enumerate(registries)}
    lines = generate_latest(JointScrape(scrapes, [1])).decode().splitlines()
    assert lines.count("# TYPE asked_total counter") == 1
    assert 'asked_total{process="0",slot="a:1"} 2.0' in lines
    assert 'asked_total{process="2",slot="a:1"} 2.0' in lines
    assert [line for line in lines if line.startswith("warmroute_slot")] == [
        'warmroute_slot_active_requests{slot="a:1"} 5.0'
    ]
    assert [line for line in lines if line.startswith("warmroute_process_up{")] == [
        f'warmroute_process_up{{process="{process}"}} {up}' for process, up in enumerate([1.0, 0.0, 1.0])
    ]
