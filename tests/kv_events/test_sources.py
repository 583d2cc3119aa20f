"""Sources as workers report them."""

from collections.abc import Callable
from typing import Any

import pytest

from kv_events.publisher import NullPublisher
from kv_events.sources import EventSource, parse_event_sources

VLLM = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://*:5557",
    "replay_endpoint": "tcp://*:5558",
    "buffer_steps": 10000,
    "hwm": 100000,
    "max_queue_size": 100000,
    "topic": "kv",
}
SGLANG = {
    "publisher": "zmq",
    "endpoint_host": "*",
    "endpoint_port_base": 5557,
    "topic": "kv",
    "block_size": 16,
    "dp_size": 2,
    "replay_endpoint_port_base": 5570,
}


def test_captured_answer_of_two_ranks(records: Callable[[str], list[dict[str, Any]]]) -> None:
    [body] = [r["kv_event_sources"] for r in records("vllm_events.jsonl") if "0" in r.get("kv_event_sources", {})]
    assert parse_event_sources(body, "worker") == [
        EventSource("tcp://127.0.0.1:5600", "tcp://127.0.0.1:5610", "dp", 0),
        EventSource("tcp://127.0.0.1:5601", "tcp://127.0.0.1:5611", "dp", 1),
    ]


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::]"])
def test_wildcard_is_the_worker_itself(host: str) -> None:
    body = {"3": {**VLLM, "endpoint": f"tcp://{host}:5557", "replay_endpoint": f"tcp://{host}:5558"}}
    [source] = parse_event_sources(body, "10.0.0.7")
    assert source == EventSource("tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558", "kv", 3)
    assert not source.binds


def test_worker_without_replay_or_topic() -> None:
    body = {"0": {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:1", "replay_endpoint": None}}
    assert parse_event_sources(body, "w") == [EventSource("tcp://w:1")]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"0": {**VLLM, "enable_kv_cache_events": False}},
        {"0": {**VLLM, "publisher": "null"}},
        {"0": NullPublisher().describe()},
        {"kv_events": None, "version": "0.5.23"},
        {"kv_events": {**SGLANG, "publisher": "null"}},
    ],
)
def test_worker_that_publishes_nothing(body: dict[str, Any]) -> None:
    assert parse_event_sources(body, "worker") == []


def test_sglang_counts_ports_up_from_the_base() -> None:
    assert parse_event_sources({"kv_events": SGLANG, "version": "0.5.23"}, "fd00::7") == [
        EventSource("tcp://[fd00::7]:5557", "tcp://[fd00::7]:5570", "kv", 0),
        EventSource("tcp://[fd00::7]:5558", "tcp://[fd00::7]:5571", "kv", 1),
    ]
    without_replay = {name: value for name, value in SGLANG.items() if name != "replay_endpoint_port_base"}
    assert [s.replay_endpoint for s in parse_event_sources({"kv_events": without_replay}, "w")] == [None, None]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"detail": "Not Found"}, "'detail' must be a rank"),
        ({"0": None}, "'0' must be a rank"),
        ({"0": {**VLLM, "endpoint": None}}, "endpoint: must be a string, is None"),
        ({"0": {**VLLM, "endpoint": "5557"}}, "'5557': must be tcp://HOST:PORT"),
        ({"0": {**VLLM, "topic": 5}}, "topic: must be a string, is 5"),
        ({"kv_events": []}, "kv_events: must be an object, is list"),
        ({"kv_events": {**SGLANG, "dp_size": "2"}}, "dp_size: must be an integer, is '2'"),
        ({"kv_events": {**SGLANG, "endpoint_port_base": 70000}}, "must be tcp://HOST:PORT"),
    ],
)
def test_any_other_answer_is_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_event_sources(body, "worker")


def test_source_with_a_wildcard_is_ours_to_bind() -> None:
    assert EventSource("tcp://*:5557").binds
    assert not EventSource("tcp://router:5557").binds
    assert not EventSource("ipc:///run/kv").binds
    with pytest.raises(ValueError, match="must name the engine's host"):
        EventSource("tcp://*:5557", "tcp://*:5558")
