from typing import Any

from prometheus_client.parser import text_string_to_metric_families


async def test_metrics_are_prometheus_under_vllms_names(serve: Any) -> None:
    async with serve("hello") as worker:
        await worker.post("/v1/completions", prompt="x" * 20)
        await worker.post("/v1/completions", prompt="x" * 20)
        async with worker.client.get("/metrics") as response:
            assert response.headers["Content-Type"].startswith("text/plain")
            families = {family.name: family for family in text_string_to_metric_families(await response.text())}
    labels = {"engine": "0", "model_name": "scripted"}

    def value(family: str, sample: str, **more: str) -> float:
        (found,) = [s for s in families[family].samples if s.name == sample and s.labels == labels | more]
        return found.value

    assert value("vllm:num_requests_running", "vllm:num_requests_running") == 0
    assert value("vllm:num_requests_waiting", "vllm:num_requests_waiting") == 0
    assert value("vllm:kv_cache_usage_perc", "vllm:kv_cache_usage_perc") == 0
    assert value("vllm:prefix_cache_queries", "vllm:prefix_cache_queries_total") == 40
    assert value("vllm:prefix_cache_hits", "vllm:prefix_cache_hits_total") == 16
    assert value("vllm:prompt_tokens", "vllm:prompt_tokens_total") == 42
    assert value("vllm:generation_tokens", "vllm:generation_tokens_total") == 12
    assert value("vllm:num_preemptions", "vllm:num_preemptions_total") == 0
    assert value("vllm:time_to_first_token_seconds", "vllm:time_to_first_token_seconds_count") == 2
    assert value("vllm:inter_token_latency_seconds", "vllm:inter_token_latency_seconds_count") == 10
    assert value("vllm:e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds_count") == 2
    assert value("vllm:request_success", "vllm:request_success_total", finished_reason="stop") == 2
    (config,) = families["vllm:cache_config_info"].samples
    assert config.labels == {"engine": "0", "block_size": "16", "num_gpu_blocks": "64"}
