"""What workers of several makes say of themselves, and what we make of it."""

from pathlib import Path
from typing import Any

import pytest

from kv_events.sources import EventSource
from protocol.errors import UpstreamFailed
from router.config import WorkerSpec
from router.discovery import event_sources, parse_block_size, parse_models
from router.records import ModelCard

METRICS = Path(__file__).parents[1] / "data" / "vllm_metrics_sample.txt"
VLLM = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://*:5557",
    "replay_endpoint": "tcp://*:5558",
}


def test_block_size_from_a_real_vllms_metrics() -> None:
    assert parse_block_size(METRICS.read_text()) == 32


@pytest.mark.parametrize("text", ["", "<html>", 'vllm:cache_config_info{block_size="none"} 1\n'])
def test_no_block_size(text: str) -> None:
    assert parse_block_size(text) is None


def test_models_with_adapters() -> None:
    body = {
        "object": "list",
        "data": [
            {
                "id": "m",
                "object": "model",
                "root": "/models/m",
                "parent": None,
                "max_model_len": 2048,
                "permission": [],
            },
            {"id": "lora-a", "root": "/loras/a", "parent": "m", "max_model_len": None},
            {"object": "no id"},
        ],
    }
    assert parse_models(body) == (ModelCard("m", "/models/m", None, 2048), ModelCard("lora-a", "/loras/a", "m", None))


@pytest.mark.parametrize("body", [None, [], {}, {"data": []}, {"data": "m"}])
def test_no_models(body: Any) -> None:
    with pytest.raises(UpstreamFailed, match="did not answer with a list of models"):
        parse_models(body)


def sources(kv_event_sources: Any = None, server_info: Any = None, **options: str) -> tuple[EventSource, ...]:
    return event_sources(WorkerSpec("http://10.0.0.5:8000", **options), kv_event_sources, server_info)


def test_vllms_sources_are_reached_at_the_worker() -> None:
    assert sources({"0": VLLM}) == (EventSource("tcp://10.0.0.5:5557", "tcp://10.0.0.5:5558"),)


def test_sglangs_sources() -> None:
    config = {"endpoint_host": "*", "endpoint_port_base": 5557, "topic": "", "dp_size": 2}
    assert [source.rank for source in sources(None, {"model_path": "m", "kv_events": config})] == [0, 1]


def test_what_the_user_names_wins() -> None:
    assert sources({"0": VLLM}, events="tcp://*:7000", topic="kv@a") == (EventSource("tcp://*:7000", None, "kv@a"),)


@pytest.mark.parametrize(
    ("kv_event_sources", "server_info"),
    [(None, None), (None, {"model_path": "m"}), ({"detail": "Not Found"}, None), ({"0": {"publisher": "null"}}, None)],
)
def test_an_engine_without_events_is_no_error(kv_event_sources: Any, server_info: Any) -> None:
    assert sources(kv_event_sources, server_info) == ()
