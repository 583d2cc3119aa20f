"""Prometheus metrics: the core with a meter on it, and the state of the fleet read when somebody asks.

Telemetry wraps the core; nothing in the core knows of it.
"""

import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kv_events.deliveries import Batch, Delivery
from kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored
from protocol.sse import Usage
from router.core import RouterCore
from router.records import CacheState, Decision, Outcome, Placement, RouteRequest, SlotReport

TOKEN_BUCKETS = tuple(float(16 << i) for i in range(14))  # 16 tokens to 128 K
TTFT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
EVENT_KINDS: dict[type, str] = {BlockStored: "stored", BlockRemoved: "removed", AllBlocksCleared: "cleared"}

SLOT_GAUGES: dict[str, tuple[str, Callable[[SlotReport], float]]] = {
    "active_requests": ("Requests placed and not finished.", lambda s: s.active_requests),
    "queued_prefill_tokens": (
        "Uncached prompt tokens whose first token has not come.",
        lambda s: s.queued_prefill_tokens,
    ),
    "decode_tokens": ("KV tokens of the requests in flight.", lambda s: s.decode_tokens),
    "prefill_tokens_per_second": ("Prefill rate, learned from first tokens.", lambda s: s.prefill_tokens_per_s),
    "index_blocks": ("Cached blocks known.", lambda s: s.blocks),
    "index_orphans": ("Stored events that wait for their parent block.", lambda s: s.orphans),
    "index_orphans_dropped": ("Stored events given up for want of their parent block.", lambda s: s.orphans_dropped),
    "index_unmappable_events": ("Stored events that say nothing of text prefixes.", lambda s: s.unmappable_events),
    "index_refused_blocks": ("Blocks over the bound of the index.", lambda s: s.refused_blocks),
    "cache_generation": ("How often the known cache was dropped.", lambda s: s.generation),
}


class Meter:
    """The metrics that are counted as things happen; one registry for each router process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"warmroute_{name}", text, labels, registry=registry)

        def tokens(name: str, text: str) -> Histogram:
            return Histogram(f"warmroute_{name}", text, registry=registry, buckets=TOKEN_BUCKETS)

        self.requests = counter("requests", "Placements that ended, by how.", "slot", "outcome")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens placed.", "slot")
        self.predicted_cached_tokens = counter("predicted_cached_tokens", "Of these, expected in the cache.", "slot")
        self.reported_cached_tokens = counter(
            "reported_cached_tokens", "Cached prompt tokens that engines report.", "slot"
        )
        self.reported_prompt_tokens = counter(
            "reported_prompt_tokens", "Prompt tokens of answers with such a report.", "slot"
        )
        self.unknown_prompts = counter("unknown_prompts", "Requests placed by load only: prompt not tokenized.")
        self.events = counter("kv_events", "KV events, by kind.", "worker", "kind")
        self.deliveries = counter("kv_event_deliveries", "News of event streams, by kind.", "worker", "kind")
        self.queried = tokens("query_tokens", "Prompt length of each placement.")
        self.matched = tokens("matched_tokens", "The longest cached prefix on any candidate.")
        self.selected = tokens("selected_tokens", "The cached prefix on the chosen one.")
        self.ttft = Histogram(
            "warmroute_ttft_seconds", "Placement to first byte.", ["slot"], registry=registry, buckets=TTFT_BUCKETS_S
        )
        self._slots: dict[str, SlotMeter] = {}  # by id, of all that ever were: as many as the registry has labels

    def slot(self, slot: str) -> "SlotMeter":
        """Its own counters, kept: to find them by their labels each time costs more than to count."""
        if slot not in self._slots:
            self._slots[slot] = SlotMeter(self, slot)
        return self._slots[slot]

    def placed(self, decision: Decision) -> None:
        slot = self.slot(decision.slot)
        slot.prompt_tokens.inc(decision.prompt_tokens)
        slot.predicted_cached_tokens.inc(decision.predicted_cached_tokens)
        self.queried.observe(decision.prompt_tokens)
        self.matched.observe(max(candidate.cached_tokens for candidate in decision.candidates))
        self.selected.observe(decision.predicted_cached_tokens)
        if decision.unknown_prompt is not None:
            self.unknown_prompts.inc()

    def finished(self, slot: str, outcome: Outcome, usage: Usage | None) -> None:
        counters = self.slot(slot)
        counters.requests[outcome].inc()
        if usage is not None and usage.cached_tokens is not None:
            counters.reported_cached_tokens.inc(usage.cached_tokens)
            counters.reported_prompt_tokens.inc(usage.prompt_tokens)

    def delivered(self, worker: str, delivery: Delivery) -> None:
        self.deliveries.labels(worker, type(delivery).__name__.lower()).inc()
        if isinstance(delivery, Batch):
            for event in delivery.batch.events:
                self.events.labels(worker, EVENT_KINDS[type(event)]).inc()
            self.events.labels(worker, "unknown").inc(delivery.batch.skipped)


class SlotMeter:
    """The counters of one slot."""

    def __init__(self, meter: Meter, slot: str) -> None:
        self.prompt_tokens = meter.prompt_tokens.labels(slot)
        self.predicted_cached_tokens = meter.predicted_cached_tokens.labels(slot)
        self.reported_cached_tokens = meter.reported_cached_tokens.labels(slot)
        self.reported_prompt_tokens = meter.reported_prompt_tokens.labels(slot)
        self.ttft = meter.ttft.labels(slot)
        self.requests = {outcome: meter.requests.labels(slot, outcome) for outcome in Outcome}


class MeteredCore(RouterCore):
    """The core, and each of its transitions counted."""

    def __init__(self, *args: Any, meter: Meter, **options: Any) -> None:
        super().__init__(*args, **options)
        self._meter = meter
        self._placements: dict[int, tuple[str, float]] = {}  # ticket -> (slot, placed at); one for each in flight

    def route(self, request: RouteRequest, now: float, *, tried: Collection[str] = ()) -> Placement:
        placement = super().route(request, now, tried=tried)
        self._placements[placement.ticket] = placement.decision.slot, now
        self._meter.placed(placement.decision)
        return placement

    def on_first_token(self, ticket: int, now: float) -> None:
        super().on_first_token(ticket, now)
        slot, placed_at = self._placements[ticket]
        self._meter.slot(slot).ttft.observe(now - placed_at)

    def on_finish(self, ticket: int, outcome: Outcome, now: float, usage: Usage | None = None) -> None:
        super().on_finish(ticket, outcome, now, usage)
        self._meter.finished(self._placements.pop(ticket)[0], outcome, usage)

    def on_kv_events(self, worker: str, rank: int, delivery: Delivery) -> None:
        super().on_kv_events(worker, rank, delivery)
        self._meter.delivered(worker, delivery)


class FleetCollector(Collector):
    """Gauges of the fleet, read from the core at scrape time."""

    def __init__(self, core: RouterCore, tokenizer_problems: Callable[[], dict[str, str]]) -> None:
        self._core, self._tokenizer_problems = core, tokenizer_problems

    def collect(self) -> Iterator[Metric]:
        workers = self._core.workers(time.monotonic())
        up = GaugeMetricFamily("warmroute_worker_up", "1 while the worker answers its probes.", labels=["worker"])
        for worker in workers:
            up.add_metric([worker.id], float(worker.health == "up"))
        yield up
        slots = [slot for worker in workers for slot in worker.slots]
        yield from (_slot_gauge(name, text, read, slots) for name, (text, read) in SLOT_GAUGES.items())
        yield _cache_states(slots)
        yield GaugeMetricFamily("warmroute_in_flight", "Requests placed and not finished.", value=self._core.in_flight)
        yield GaugeMetricFamily(
            "warmroute_leased_blocks", "Blocks expected of prompts in flight.", value=self._core.leased_blocks
        )
        missing = GaugeMetricFamily(
            "warmroute_tokenizer_missing", "1: the model is placed by load only.", labels=["model"]
        )
        for model in self._tokenizer_problems():
            missing.add_metric([model], 1.0)
        yield missing


def _slot_gauge(name: str, text: str, read: Callable[[SlotReport], float], slots: list[SlotReport]) -> Metric:
    gauge = GaugeMetricFamily(f"warmroute_slot_{name}", text, labels=["slot"])
    for slot in slots:
        gauge.add_metric([slot.slot], read(slot))
    return gauge


def _cache_states(slots: list[SlotReport]) -> Metric:
    states = GaugeMetricFamily("warmroute_slot_cache_state", "1 for the state it is in.", labels=["slot", "state"])
    for slot in slots:
        for state in CacheState:
            states.add_metric([slot.slot, state], float(slot.cache_state is state))
    return states


def exposition(meter: Meter) -> bytes:
    """The text of /metrics."""
    return generate_latest(meter.registry)
