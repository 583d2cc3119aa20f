"""Asking a worker what it is: models, block size, where its events come from.

Understands vLLM 0.32 (/v1/models, /kv_event_sources, label block_size of vllm:cache_config_info), which our own worker
speaks too, and SGLang (/server_info). What an engine does not have is not an error: older vLLM has no
/kv_event_sources, and what an engine without events has cached is taken from what was sent there.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson
from prometheus_client.parser import text_string_to_metric_families

from kv_events.sources import EventSource, parse_event_sources
from protocol.errors import UpstreamFailed
from router.config import WorkerSpec
from router.http.upstream import Upstream
from router.records import ModelCard, WorkerInfo

MAX_ANSWER_BYTES = 8 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Discovery:
    info: WorkerInfo
    sources: tuple[EventSource, ...]


async def discover(upstream: Upstream, spec: WorkerSpec, timeout_s: float) -> Discovery:
    """What the worker says of itself. Raises TimeoutError or UpstreamFailed (no answer, or no list of models)."""
    paths = ("/v1/models", "/kv_event_sources", "/server_info", "/metrics")
    async with asyncio.timeout(timeout_s):
        models, sources, server_info, metrics = await asyncio.gather(
            *(_get(upstream, spec.url, path) for path in paths)
        )
    cards = parse_models(models.json())
    found = event_sources(spec, sources.json(), server_info.json())
    info = WorkerInfo(
        models=cards,
        block_size=parse_block_size(metrics.text) or _sglang_block_size(server_info.json()),
        ranks=tuple(source.rank for source in found) or (0,),
        publishes_events=bool(found),
    )
    return Discovery(info, found)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    text: str

    def json(self) -> Any:
        """The body of a 200, or None where there is none or it is not JSON."""
        try:
            return orjson.loads(self.text) if self.status == 200 else None
        except ValueError:
            return None


async def _get(upstream: Upstream, url: str, path: str) -> _Answer:
    try:
        status, body = await upstream.get(url, path, max_bytes=MAX_ANSWER_BYTES)
    except OSError as error:
        raise UpstreamFailed(f"{url}{path}: {describe(error)}") from error
    return _Answer(status, body.decode("utf-8", "replace"))


def describe(error: BaseException) -> str:
    return str(error) or type(error).__name__


def parse_models(body: Any) -> tuple[ModelCard, ...]:
    """The cards of a /v1/models answer. Raises UpstreamFailed if it is none."""
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, list) or not data:
        raise UpstreamFailed("/v1/models did not answer with a list of models")
    return tuple(_card(card) for card in data if isinstance(card, dict) and isinstance(card.get("id"), str))


def _card(card: Mapping[str, Any]) -> ModelCard:
    def text(key: str) -> str | None:
        value = card.get(key)
        return value if isinstance(value, str) else None

    max_model_len = card.get("max_model_len")
    return ModelCard(
        card["id"], text("root"), text("parent"), max_model_len if isinstance(max_model_len, int) else None
    )


def event_sources(spec: WorkerSpec, kv_event_sources: Any, server_info: Any) -> tuple[EventSource, ...]:
    """The worker's event sources, one a rank: the one the user named, else those in the worker's own answers."""
    if spec.events is not None:
        return (EventSource(spec.events, spec.replay, spec.topic),)
    answer = kv_event_sources or _part(server_info, "kv_events")
    if not isinstance(answer, dict):
        return ()
    try:
        return tuple(parse_event_sources(answer, urlsplit(spec.url).hostname or ""))
    except ValueError as error:
        log.warning(
            "worker %s is placed on by what it was sent: %s; name its events with --worker URL,events=...",
            spec.url,
            error,
        )
        return ()


def _part(body: Any, key: str) -> dict[str, Any] | None:
    return {key: body[key]} if isinstance(body, dict) and key in body else None


def parse_block_size(metrics: str) -> int | None:
    """Label block_size of vllm:cache_config_info."""
    try:
        for family in text_string_to_metric_families(metrics):
            for sample in family.samples:
                size = sample.labels.get("block_size", "")
                if sample.name == "vllm:cache_config_info" and size.isdigit():
                    return int(size) or None
    except ValueError:  # not Prometheus text
        return None
    return None


def _sglang_block_size(server_info: Any) -> int | None:
    events = server_info.get("kv_events") if isinstance(server_info, dict) else None
    size = events.get("block_size") if isinstance(events, dict) else None
    return size if isinstance(size, int) and size > 0 else None
