"""Where a worker's events come from, and how its own HTTP API says so."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kv_events.endpoints import check, for_rank, names_no_host, with_host


@dataclass(frozen=True, slots=True)
class EventSource:
    """One stream of batches: one rank of one worker. Raises ValueError for an endpoint that is none.

    We connect to `endpoint`, unless its host is a wildcard: then we bind it and engines connect to us. Several sources
    may share a bound endpoint, told apart by `topic`, which must then not be empty. `replay_endpoint` is the engine's
    own; without one, what is lost is lost.
    """

    endpoint: str
    replay_endpoint: str | None = None
    topic: str = ""
    rank: int = 0

    def __post_init__(self) -> None:
        check(self.endpoint)
        if self.replay_endpoint is not None:
            check(self.replay_endpoint)
            if names_no_host(self.replay_endpoint):
                raise ValueError(f"replay endpoint {self.replay_endpoint!r}: must name the engine's host")

    @property
    def binds(self) -> bool:
        """True when we bind and engines connect to us."""
        return names_no_host(self.endpoint)


def parse_event_sources(body: Mapping[str, object], worker_host: str) -> list[EventSource]:
    """The sources that a worker reports, empty when it publishes no events. Raises ValueError for any other body.

    `body` is vLLM's GET /kv_event_sources, `{"<rank>": {endpoint, replay_endpoint, topic, ...}}`, or SGLang's
    GET /server_info with its `kv_events`. A wildcard host in it is the worker's own, so `worker_host` takes its place.
    """
    if "kv_events" in body:
        return list(_sglang_sources(body["kv_events"], worker_host))
    return list(_vllm_sources(body, worker_host))


def _vllm_sources(body: Mapping[str, object], worker_host: str) -> Iterator[EventSource]:
    for rank, config in body.items():
        if not rank.isdecimal() or not isinstance(config, Mapping):
            raise ValueError(f"KV event sources: {rank!r} must be a rank with its publisher's configuration")
        if not config.get("enable_kv_cache_events") or config.get("publisher") == "null":
            continue
        replay = _text_or_none(config, "replay_endpoint")
        yield EventSource(
            endpoint=with_host(_text(config, "endpoint"), worker_host),
            replay_endpoint=with_host(replay, worker_host) if replay else None,
            topic=_text_or_none(config, "topic") or "",
            rank=int(rank),
        )


def _sglang_sources(config: object, worker_host: str) -> Iterator[EventSource]:
    if config is None:
        return
    if not isinstance(config, Mapping):
        raise ValueError(f"kv_events: must be an object, is {type(config).__name__}")
    if config.get("publisher") == "null":
        return
    host = _text(config, "endpoint_host")
    endpoint = f"tcp://{host}:{_integer(config, 'endpoint_port_base')}"
    has_replay = config.get("replay_endpoint_port_base") is not None
    replay = f"tcp://{host}:{_integer(config, 'replay_endpoint_port_base')}" if has_replay else None
    for rank in range(_integer(config, "dp_size")):
        yield EventSource(
            endpoint=for_rank(with_host(endpoint, worker_host), rank),
            replay_endpoint=for_rank(with_host(replay, worker_host), rank) if replay else None,
            topic=_text_or_none(config, "topic") or "",
            rank=rank,
        )


def _text(config: Mapping[str, object], name: str) -> str:
    value = config.get(name)
    if not isinstance(value, str):
        raise ValueError(f"KV event sources, {name}: must be a string, is {value!r}")
    return value


def _text_or_none(config: Mapping[str, object], name: str) -> str | None:
    return None if config.get(name) is None else _text(config, name)


def _integer(config: Mapping[str, object], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int):
        raise ValueError(f"KV event sources, {name}: must be an integer, is {value!r}")
    return value
