"""A core with workers on it."""

from collections.abc import Callable
from random import Random

import pytest

from policies.registry import make_policy
from router.core import RouterCore
from router.records import ModelCard, WorkerInfo
from tests.router.fakes import SIZE

MakeCore = Callable[..., RouterCore]


@pytest.fixture
def make_core() -> MakeCore:
    def make(
        workers: int = 2, *, policy: str = "expected_work", ranks: tuple[int, ...] = (0,), max_in_flight: int = 100
    ) -> RouterCore:
        core = RouterCore(
            make_policy(policy),
            Random(0),
            policy_name=policy,
            max_in_flight=max_in_flight,
            max_decisions=10,
            prior_prefill_tokens_per_s=1000.0,
        )
        for i in range(workers):
            worker = core.add_worker(f"http://w{i}:1")
            core.on_worker_up(worker, WorkerInfo((ModelCard("m"), ModelCard("lora", parent="m")), SIZE, ranks))
        return core

    return make
