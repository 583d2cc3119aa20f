"""Endpoint strings of the event wire: who binds, which port a rank gets, what a wildcard host means to the other side.

The rules are vLLM's (vllm/distributed/kv_events.py), with two additions: `0.0.0.0` is a wildcard too (SGLang), and
port 0 binds, for nothing can connect to it.
"""

import re
from collections.abc import Set

_TCP = re.compile(r"tcp://(?P<host>\*|[\w.-]+|\[[\w:.%]+\]):(?P<port>[0-9]{1,5})", re.ASCII)
WILDCARD_HOSTS = frozenset({"*", "0.0.0.0", "[::]"})


def parse_tcp(endpoint: str) -> tuple[str, int]:
    """`tcp://HOST:PORT` as (host, port); the host keeps its brackets. Raises ValueError."""
    match = _TCP.fullmatch(endpoint)
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"endpoint {endpoint!r}: must be tcp://HOST:PORT or ipc://PATH")
    return match["host"], int(match["port"])


def check(endpoint: str) -> None:
    """Raises ValueError unless the endpoint is one that two processes can share."""
    if not (endpoint.startswith("ipc://") and endpoint != "ipc://"):
        parse_tcp(endpoint)


def publisher_binds(endpoint: str) -> bool:
    """True where an engine's PUB socket binds; a plain `tcp://HOST:PORT` connects to a subscriber bound there."""
    if endpoint.startswith("ipc://"):
        return True
    host, port = parse_tcp(endpoint)
    return host in WILDCARD_HOSTS or "::" in host or port == 0


def names_no_host(endpoint: str) -> bool:
    """True for a TCP endpoint with a wildcard host, which nothing can connect to."""
    return endpoint.startswith("tcp://") and parse_tcp(endpoint)[0] in WILDCARD_HOSTS


def with_host(endpoint: str, host: str, wildcards: Set[str] = WILDCARD_HOSTS) -> str:
    """The endpoint with a host out of `wildcards` replaced by `host` (IPv6 gets its brackets), any other unchanged."""
    if not endpoint.startswith("tcp://") or parse_tcp(endpoint)[0] not in wildcards:
        return endpoint
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"tcp://{bracketed}:{parse_tcp(endpoint)[1]}"


def for_rank(endpoint: str, rank: int) -> str:
    """One data-parallel rank's endpoint: port + rank, but port 0 stays. Raises ValueError for ipc:// beyond rank 0."""
    if rank == 0:
        return endpoint
    if endpoint.startswith("ipc://"):
        raise ValueError(f"endpoint {endpoint!r}: ipc:// serves rank 0 only, this is rank {rank}")
    host, port = parse_tcp(endpoint)
    return f"tcp://{host}:{port + rank if port else 0}"
