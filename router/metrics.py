"""Prometheus metrics: the core with a meter on it, and the state of the fleet read when somebody asks.

Telemetry wraps the core; nothing in the core knows of it.
"""

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

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
    "index_evicted_blocks": ("Blocks forgotten at the bound of the index.", lambda s: s.evicted_blocks),
    "cache_generation": ("How often the known cache was dropped.", lambda s: s.generation),
}

SHARED_GAUGES = frozenset(
    f"warmroute_slot_{name}"
    for name in ("active_requests", "queued_prefill_tokens", "decode_tokens", "prefill_tokens_per_second")
)
"""These come from the load table: where several processes share it, each tells what all of them have there."""


class Distribution:
    """A histogram's numbers; buckets hold values up to their bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._sum = bounds, 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str] = ()) -> None:
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        family.add_metric(labels, list(zip(names, accumulate(self._counts), strict=True)), self._sum)


class SlotCounts:
    """What is counted for each slot."""

    def __init__(self) -> None:
        self.prompt_tokens = self.predicted_cached_tokens = 0
        self.reported_prompt_tokens = self.reported_cached_tokens = 0
        self.requests = dict.fromkeys(Outcome, 0)
        self.ttft_s = Distribution(TTFT_BUCKETS_S)


SLOT_COUNTERS: dict[str, tuple[str, Callable[[SlotCounts], int]]] = {
    "prompt_tokens": ("Prompt tokens placed.", lambda c: c.prompt_tokens),
    "predicted_cached_tokens": ("Of these, expected in the cache.", lambda c: c.predicted_cached_tokens),
    "reported_prompt_tokens": ("Prompt tokens of answers with such a report.", lambda c: c.reported_prompt_tokens),
    "reported_cached_tokens": ("Cached prompt tokens that engines report.", lambda c: c.reported_cached_tokens),
}


class Meter(Collector):
    """What is counted as things happen, in plain numbers, for each request passes here five times; families are made
    of them when somebody asks. Bounded by the slots and workers that ever were."""

    def __init__(self) -> None:
        self.slots: defaultdict[str, SlotCounts] = defaultdict(SlotCounts)
        self.unknown_prompts = 0
        self.queried, self.matched, self.selected = (Distribution(TOKEN_BUCKETS) for _ in range(3))
        self.events: Counter[tuple[str, str]] = Counter()  # of (worker, kind)
        self.deliveries: Counter[tuple[str, str]] = Counter()

    def placed(self, decision: Decision) -> None:
        counts = self.slots[decision.slot]
        counts.prompt_tokens += decision.prompt_tokens
        counts.predicted_cached_tokens += decision.predicted_cached_tokens
        self.queried.observe(decision.prompt_tokens)
        cached = decision.candidates.cached_tokens
        self.matched.observe(cached.item(cached.argmax()))
        self.selected.observe(decision.predicted_cached_tokens)
        self.unknown_prompts += decision.unknown_prompt is not None

    def finished(self, slot: str, outcome: Outcome, usage: Usage | None) -> None:
        counts = self.slots[slot]
        counts.requests[outcome] += 1
        if usage is not None and usage.cached_tokens is not None:
            counts.reported_cached_tokens += usage.cached_tokens
            counts.reported_prompt_tokens += usage.prompt_tokens

    def delivered(self, worker: str, delivery: Delivery) -> None:
        self.deliveries[worker, type(delivery).__name__.lower()] += 1
        if isinstance(delivery, Batch):
            for event in delivery.batch.events:
                self.events[worker, EVENT_KINDS[type(event)]] += 1
            self.events[worker, "unknown"] += delivery.batch.skipped

    def collect(self) -> Iterator[Metric]:
        for name, (text, read) in SLOT_COUNTERS.items():
            yield _counter(name, text, ["slot"], [([slot], read(counts)) for slot, counts in self.slots.items()])
        outcomes = [([slot, how], n) for slot, counts in self.slots.items() for how, n in counts.requests.items()]
        yield _counter("requests", "Placements that ended, by how.", ["slot", "outcome"], outcomes)
        yield _counter("kv_events", "KV events, by kind.", ["worker", "kind"], self.events.items())
        yield _counter(
            "kv_event_deliveries", "News of event streams, by kind.", ["worker", "kind"], self.deliveries.items()
        )
        unknown = "Requests placed by text or by load only: prompt not tokenized."
        yield _counter("unknown_prompts", unknown, [], [([], self.unknown_prompts)])
        yield _distribution("query_tokens", "Prompt length of each placement.", self.queried)
        yield _distribution("matched_tokens", "The longest cached prefix on any candidate.", self.matched)
        yield _distribution("selected_tokens", "The cached prefix on the chosen one.", self.selected)
        ttft = HistogramMetricFamily("warmroute_ttft_seconds", "Placement to first byte.", labels=["slot"])
        for slot, counts in self.slots.items():
            counts.ttft_s.add_to(ttft, [slot])
        yield ttft


def _counter(name: str, text: str, labels: Sequence[str], values: Iterable[tuple[Sequence[str], int]]) -> Metric:
    family = CounterMetricFamily(f"warmroute_{name}", text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, value)
    return family


def _distribution(name: str, text: str, numbers: Distribution) -> Metric:
    family = HistogramMetricFamily(f"warmroute_{name}", text)
    numbers.add_to(family)
    return family


class MeteredCore(RouterCore):
    """The core, and each of its transitions counted."""

    def __init__(self, *args: Any, meter: Meter, **options: Any) -> None:
        super().__init__(*args, **options)
        self._meter = meter

    def route(self, request: RouteRequest, now: float, *, tried: Collection[str] = ()) -> Placement:
        placement = super().route(request, now, tried=tried)
        self._meter.placed(placement.decision)
        return placement

    def on_first_token(self, ticket: int, now: float) -> None:
        super().on_first_token(ticket, now)
        decision = self._in_flight[ticket].decision
        self._meter.slots[decision.slot].ttft_s.observe(now - decision.at_s)

    def on_finish(self, ticket: int, outcome: Outcome, now: float, usage: Usage | None = None) -> None:
        slot = self._in_flight[ticket].decision.slot
        super().on_finish(ticket, outcome, now, usage)
        self._meter.finished(slot, outcome, usage)

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
        missing = GaugeMetricFamily("warmroute_tokenizer_missing", "1: the model is placed by text.", labels=["model"])
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
