"""A router over real sockets with scripted engines behind it, and what tests ask of them."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import aiohttp

from router.app import RunningRouter
from router.core import RouterCore
from tests.router.engine import Engine

SYSTEM = "You sell ferry tickets. Heron leaves at seven, Kestrel at nine, Osprey at noon. Bicycles travel free. " * 3
WAIT_S = 60.0


def chat(user: str = "When?", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
    return {"model": "tiny", "messages": messages, **fields}


async def until(condition: Callable[[], object]) -> None:
    """Wait for what the router does in the background; a state, looked at, is all there is to wait on."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - nothing would set an event
            await asyncio.sleep(0.005)


class Fleet:
    """A router in front of fake engines, and a client."""

    def __init__(self, router: RunningRouter, engines: list[Engine], client: aiohttp.ClientSession) -> None:
        self.router, self.engines, self.client = router, engines, client

    @property
    def core(self) -> RouterCore:
        return self.router.core

    def engine(self, worker: str) -> Engine:
        return next(engine for engine in self.engines if engine.id == worker)

    def post(self, path: str = "/v1/chat/completions", body: Any = None, **options: Any) -> Any:
        return self.client.post(self.router.url + path, json=chat() if body is None else body, **options)

    async def ask(self, body: Any = None, path: str = "/v1/chat/completions") -> tuple[int, Any, str | None]:
        """(status, JSON, worker)"""
        async with self.post(path, body) as response:
            return response.status, await response.json(), response.headers.get("x-warmroute-worker")

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.client.get(self.router.url + path) as response:
            return response.status, await response.json()

    def slot(self, worker: str) -> Any:
        (report,) = [report for report in self.core.workers(monotonic()) if report.id == worker]
        return report.slots[0] if report.slots else None

    def live(self, worker: str) -> bool:
        slot = self.slot(worker)
        return slot is not None and slot.cache_state == "live"

    async def all_live(self) -> None:
        await until(lambda: all(self.live(engine.id) for engine in self.engines))

    def idle(self) -> bool:
        self.core.check()
        return self.core.in_flight == 0 and all(engine.running == 0 for engine in self.engines)
