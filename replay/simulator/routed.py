"""Requests placed by our own router core, which hears of the workers' caches as a real one does."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from random import Random

from kv_events.deliveries import Delivery
from kv_events.events import KvEvent
from policies.views import Policy
from replay.simulator.agenda import Agenda
from replay.simulator.feed import EventFeed
from replay.simulator.flight import Flight
from replay.simulator.options import Faults, FleetSpec
from router.config import RouterConfig
from router.core import RouterCore
from router.records import ModelCard, Outcome, RouteRequest, WorkerInfo

MODEL = "simulated"


class Routed:
    """A dispatcher. The router's settings are its defaults, but for the bound on requests in flight: there is none."""

    def __init__(
        self, policy: Policy, name: str, spec: FleetSpec, faults: Faults, agenda: Agenda, *, requests: int, seed: int
    ) -> None:
        self._core = RouterCore(
            policy,
            Random(seed),
            policy_name=name,
            max_in_flight=requests,
            max_decisions=1,
            prior_prefill_tokens_per_s=RouterConfig().prior_prefill_tokens_per_s,
            max_index_bytes=RouterConfig().max_index_mib << 20,
            assumed_cache_tokens=RouterConfig().assumed_cache_tokens,
        )
        self._workers = [self._core.add_worker(f"http://worker-{place}") for place in range(spec.workers)]
        self._places = {worker: place for place, worker in enumerate(self._workers)}
        self._tickets: dict[int, int] = {}  # of the flights under way
        info = WorkerInfo((ModelCard(MODEL),), spec.block_size)
        self._feeds = []
        for place, worker in enumerate(self._workers):
            self._core.on_worker_up(worker, info)
            feed = EventFeed(place, faults, agenda, Random(f"{seed} {place}"), self._deliver(worker))
            feed.connect(0.0)
            self._feeds.append(feed)

    def place(self, flight: Flight, now: float, tried: Collection[int]) -> int | None:
        assert flight.prompt is not None, "a request that has ended is not sent again"
        session = flight.request.session
        request = RouteRequest(
            flight.id,
            MODEL,
            flight.request.input_tokens,
            (flight.prompt,),
            session=session,
            follow_up=None if session is None else flight.request.turn > 0,
        )
        placement = self._core.route(request, now, tried=[self._workers[place] for place in tried])
        self._tickets[flight.number] = placement.ticket
        flight.predicted_tokens = placement.decision.predicted_cached_tokens
        return self._places[placement.worker]

    def pull(self, worker: int, now: float) -> Flight | None:
        return None

    def on_first_token(self, flight: Flight, now: float) -> None:
        self._core.on_first_token(self._tickets[flight.number], now)

    def on_end(self, flight: Flight, now: float) -> None:
        self._core.on_finish(self._tickets.pop(flight.number), Outcome.OK, now)

    def on_events(self, worker: int, events: Sequence[KvEvent], now: float) -> None:
        self._feeds[worker].publish(events, now)

    def on_restart(self, worker: int) -> None:
        self._feeds[worker].restart()

    def _deliver(self, worker: str) -> Callable[[Delivery], None]:
        return partial(self._core.on_kv_events, worker, 0)
