"""Endpoint strings: vLLM's rules of who binds and which port a rank gets."""

import pytest

from kv_events.endpoints import check, for_rank, names_no_host, publisher_binds, with_host


@pytest.mark.parametrize(
    ("endpoint", "binds"),
    [
        ("tcp://*:5557", True),
        ("tcp://*:0", True),
        ("tcp://0.0.0.0:5557", True),
        ("tcp://[::]:5557", True),
        ("tcp://[::1]:5557", True),
        ("tcp://127.0.0.1:0", True),
        ("ipc:///run/kv", True),
        ("tcp://127.0.0.1:5557", False),
        ("tcp://router.example:5557", False),
        ("tcp://[2001:db8:0:0:0:0:0:1]:5557", False),
    ],
)
def test_who_binds(endpoint: str, binds: bool) -> None:
    assert publisher_binds(endpoint) is binds


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "tcp://",
        "tcp://host",
        "tcp://:5557",
        "tcp://host:",
        "tcp://host:65536",
        "tcp://host:-1",
        "tcp://a b:1",
        "ipc://",
        "inproc://kv",
        "udp://host:1",
        "host:5557",
        "tcp://::1:5557",
        "tcp://host:\N{ARABIC-INDIC DIGIT ONE}",
    ],
)
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"must be tcp://HOST:PORT or ipc://PATH"):
        check(endpoint)


def test_rank_shifts_the_port() -> None:
    assert for_rank("tcp://*:5557", 0) == "tcp://*:5557"
    assert for_rank("tcp://*:5557", 2) == "tcp://*:5559"
    assert for_rank("tcp://[::1]:5557", 1) == "tcp://[::1]:5558"
    assert for_rank("tcp://*:0", 3) == "tcp://*:0"
    assert for_rank("ipc:///run/kv", 0) == "ipc:///run/kv"
    with pytest.raises(ValueError, match="serves rank 0 only, this is rank 1"):
        for_rank("ipc:///run/kv", 1)


@pytest.mark.parametrize(
    ("endpoint", "host", "expected"),
    [
        ("tcp://*:5557", "10.0.0.7", "tcp://10.0.0.7:5557"),
        ("tcp://0.0.0.0:5557", "worker-1", "tcp://worker-1:5557"),
        ("tcp://[::]:5557", "fd00::7", "tcp://[fd00::7]:5557"),
        ("tcp://*:5557", "[fd00::7]", "tcp://[fd00::7]:5557"),
        ("tcp://10.0.0.1:5557", "10.0.0.7", "tcp://10.0.0.1:5557"),
        ("ipc:///run/kv", "10.0.0.7", "ipc:///run/kv"),
    ],
)
def test_wildcard_host_is_replaced(endpoint: str, host: str, expected: str) -> None:
    assert with_host(endpoint, host) == expected


def test_only_the_wildcards_asked_for_are_replaced() -> None:
    assert with_host("tcp://*:1", "::1", {"*"}) == "tcp://[::1]:1"
    assert with_host("tcp://0.0.0.0:1", "::1", {"*"}) == "tcp://0.0.0.0:1"


def test_wildcards_name_no_host() -> None:
    assert [names_no_host(e) for e in ("tcp://*:1", "tcp://0.0.0.0:1", "tcp://[::]:1")] == [True] * 3
    assert [names_no_host(e) for e in ("tcp://[::1]:1", "tcp://127.0.0.1:0", "ipc://a*")] == [False] * 3
