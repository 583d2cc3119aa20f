"""Links that keep in step with the core, and with a roster where there is one."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from protocol.errors import Conflict
from router.app import build
from router.config import RouterConfig, WorkerSpec
from router.core import RouterCore
from router.records import ModelCard, Outcome, WorkerInfo
from router.workers import Roster, Workers
from tests.router.conftest import MakeCore
from tests.router.fakes import ask

A, B = WorkerSpec("http://a:1"), WorkerSpec("http://b:1")
A_ELSEWHERE = WorkerSpec("http://a:1", events="tcp://a:5557")


class Link:
    """Ends when the test says so."""

    def __init__(self, worker: str, spec: WorkerSpec) -> None:
        self.worker, self.spec, self.checked = worker, spec, asyncio.Event()

    def start(self, on_end: Callable[[], object]) -> None:
        self.end = on_end

    def probe_soon(self) -> None:
        pass

    async def close(self) -> None:
        self.end()


@pytest.fixture
def core(make_core: MakeCore) -> RouterCore:
    return make_core(0)


@pytest.fixture
def workers(core: RouterCore) -> Workers:
    make_link: Any = Link
    return Workers(core, make_link)


def link(workers: Workers, worker: str) -> Any:
    return workers.links[worker]


def here(workers: Workers) -> dict[str, WorkerSpec]:
    return {worker: link.spec for worker, link in workers.links.items()}


def test_a_worker_that_is_here_is_not_added_again(workers: Workers) -> None:
    workers.add(A)
    with pytest.raises(Conflict, match="a:1"):
        workers.add(A)


def test_a_roster_is_followed(core: RouterCore, workers: Workers) -> None:
    workers.follow(Roster(1, {"a:1": A}))
    workers.follow(Roster(2, {"b:1": B}))
    assert not core.has_worker("a:1"), "nothing ran there"
    assert core.has_worker("b:1")
    link(workers, "a:1").end()
    assert here(workers) == {"b:1": B}


def test_a_roster_that_comes_late_changes_nothing(workers: Workers) -> None:
    workers.follow(Roster(2, {"b:1": B}))
    workers.follow(Roster(1, {"a:1": A}))
    assert here(workers) == {"b:1": B}


def test_who_comes_back_while_it_leaves_is_added_when_it_has_left(core: RouterCore, workers: Workers) -> None:
    workers.follow(Roster(1, {"a:1": A}))
    core.on_worker_up("a:1", WorkerInfo((ModelCard("m"),)))
    placement = core.route(ask([1, 2, 3]), 0.0)
    workers.follow(Roster(2, {}))
    workers.follow(Roster(3, {"a:1": A}))
    assert core.worker("a:1", 0.0).draining
    core.on_finish(placement.ticket, Outcome.OK, 1.0)
    link(workers, "a:1").end()
    assert not core.worker("a:1", 1.0).draining
    assert here(workers) == {"a:1": A}


def test_one_whose_events_come_from_elsewhere_is_another(core: RouterCore, workers: Workers) -> None:
    workers.follow(Roster(1, {"a:1": A}))
    workers.follow(Roster(2, {"a:1": A_ELSEWHERE}))
    link(workers, "a:1").end()
    assert here(workers) == {"a:1": A_ELSEWHERE}


async def test_closing_adds_nobody_again(workers: Workers) -> None:
    workers.follow(Roster(1, {"a:1": A}))
    await workers.close()
    assert here(workers) == {}


async def test_checked_waits_for_all(workers: Workers) -> None:
    workers.add(A)
    workers.add(B)
    waiting = asyncio.ensure_future(workers.checked())
    link(workers, "a:1").checked.set()
    await asyncio.sleep(0)
    assert not waiting.done()
    link(workers, "b:1").checked.set()
    await waiting


async def test_a_link_that_is_about_to_probe_can_be_closed() -> None:
    """A cancellation must not get lost where it meets the wish to probe."""
    async with AsyncExitStack() as stack:
        workers = build(stack, RouterConfig(probe_interval_s=60.0)).workers
        workers.add(WorkerSpec("http://127.0.0.1:9"))
        await workers.checked()
        await asyncio.sleep(0)  # now it waits for the next probe
        link(workers, "127.0.0.1:9").probe_soon()
        async with asyncio.timeout(15):
            await workers.close()
