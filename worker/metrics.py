"""What this worker tells Prometheus, under vLLM's names, so that dashboards and routers made for vLLM read it."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from worker.engine import EngineStats
from worker.request import FinishReason

ENGINE = "0"  # vLLM numbers its engines; here there is one

_GAUGES: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "vllm:num_requests_running": ("Sequences in the running batch.", lambda stats: stats.running),
    "vllm:num_requests_waiting": ("Sequences that wait to be scheduled.", lambda stats: stats.waiting),
    "vllm:kv_cache_usage_perc": ("Share of the KV blocks that running sequences hold, 0 to 1.", lambda s: s.kv_usage),
}
_COUNTERS: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", lambda s: s.prompt_tokens_queried),
    "vllm:prefix_cache_hits": ("Prompt tokens found in the prefix cache.", lambda stats: stats.prompt_tokens_hit),
    "vllm:generation_tokens": ("Tokens generated.", lambda stats: stats.generated_tokens),
    "vllm:num_preemptions": ("Sequences that lost their blocks to older ones.", lambda stats: stats.preemptions),
}
_FIRST_TOKEN_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)  # fmt: skip
_TOKEN_BUCKETS_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST_BUCKETS_S = (
    0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
)  # fmt: skip


class Metrics:
    """One worker's metrics, with a registry of their own. `cache_config` are the labels of vllm:cache_config_info."""

    def __init__(self, model: str, cache_config: dict[str, str], stats: Callable[[], EngineStats]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(model, cache_config, stats))
        labels = {"engine": ENGINE, "model_name": model}

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, list(labels), buckets=buckets, registry=self._registry).labels(**labels)

        self._first_token_s = histogram(
            "vllm:time_to_first_token_seconds", "From a request to a sequence's first token.", _FIRST_TOKEN_BUCKETS_S
        )
        self._inter_token_s = histogram(
            "vllm:inter_token_latency_seconds", "Between two tokens of a sequence.", _TOKEN_BUCKETS_S
        )
        self._request_s = histogram(
            "vllm:e2e_request_latency_seconds", "From a request to a sequence's last token.", _REQUEST_BUCKETS_S
        )
        self._prompt_tokens = Counter(
            "vllm:prompt_tokens", "Prompt tokens of the sequences that started.", list(labels), registry=self._registry
        ).labels(**labels)
        finished = Counter(
            "vllm:request_success", "Sequences ended.", [*labels, "finished_reason"], registry=self._registry
        )
        self._finished = {reason: finished.labels(**labels, finished_reason=reason.value) for reason in FinishReason}

    def first_token(self, since_request_s: float, prompt_tokens: int) -> None:
        self._first_token_s.observe(since_request_s)
        self._prompt_tokens.inc(prompt_tokens)

    def next_token(self, since_last_s: float) -> None:
        self._inter_token_s.observe(since_last_s)

    def finished(self, reason: FinishReason, since_request_s: float) -> None:
        """A sequence has ended, well or not."""
        self._finished[reason].inc()
        self._request_s.observe(since_request_s)

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """Reads the engine's own statistics when somebody asks, instead of counting twice."""

    def __init__(self, model: str, cache_config: dict[str, str], stats: Callable[[], EngineStats]) -> None:
        self._labels = {"engine": ENGINE, "model_name": model}
        self._cache_config = {"engine": ENGINE} | cache_config
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        stats = self._stats()
        for name, (text, value) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=list(self._labels))
            gauge.add_metric(list(self._labels.values()), value(stats))
            yield gauge
        for name, (text, value) in _COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=list(self._labels))
            counter.add_metric(list(self._labels.values()), value(stats))
            yield counter
        info = GaugeMetricFamily("vllm:cache_config_info", "The KV cache.", labels=list(self._cache_config))
        info.add_metric(list(self._cache_config.values()), 1)
        yield info
