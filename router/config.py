"""The router's configuration: one frozen value, read once at the edge."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from kv_events.sources import EventSource
from policies.registry import DEFAULT


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker as the user names it. `events` None: ask its /kv_event_sources."""

    url: str
    events: str | None = None
    replay: str | None = None
    topic: str = ""

    @classmethod
    def parse(cls, text: str) -> "WorkerSpec":
        """`URL[,events=ENDPOINT][,replay=ENDPOINT][,topic=TOPIC]`. Raises ValueError that says what is allowed."""
        url, *assignments = text.split(",")
        options = dict(assignment.partition("=")[::2] for assignment in assignments)
        return cls.of({**options, "url": url})

    @classmethod
    def of(cls, values: Mapping[str, object]) -> "WorkerSpec":
        """From names and values. Raises ValueError for other names, endpoints that cannot be followed, and `replay` or
        `topic` without `events`."""
        allowed = [field.name for field in fields(cls)]
        for name, value in values.items():
            if name not in allowed or not isinstance(value, str):
                raise ValueError(f"{name}={value!r} is not one of {', '.join(allowed)}, each a text")
        if "url" not in values:
            raise ValueError("url is missing: http://HOST:PORT")
        spec = cls(**{**values, "url": str(values["url"]).rstrip("/")})  # type: ignore[arg-type]  # checked above
        if spec.events is not None:
            EventSource(spec.events, spec.replay, spec.topic)
        elif spec.replay is not None or spec.topic:
            raise ValueError("replay= and topic= go with events=")
        return spec


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """The same names as the command's options, which document them. Times in seconds."""

    worker: tuple[WorkerSpec, ...] = ()
    policy: str = DEFAULT
    host: str = "127.0.0.1"
    port: int = 8000
    processes: int = 1
    tokenizer: str | None = None
    seed: int = 0
    probe_interval_s: float = 1.0
    probe_timeout_s: float = 5.0
    max_in_flight: int = 4096
    max_attempts: int = 3
    max_body_mib: int = 64
    max_decisions: int = 1000
    max_index_mib: int = 4096
    prior_prefill_tokens_per_s: float = 1000.0
    assumed_cache_tokens: int = 1 << 20
    drain_timeout_s: float = 30.0
    log_level: str = "info"
