"""One live replay from beginning to end: find the model, prepare, send, count."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from replay.arrivals import LoadSpec
from replay.client import open_session
from replay.endpoint import served_model
from replay.errors import UnusableEndpoint
from replay.live.api import Api
from replay.live.client import LoadClient
from replay.live.counters import read_counters
from replay.live.prompts import make_prompts
from replay.live.report import LiveResult, live_report
from replay.live.run import LiveRun
from replay.measures import TokenCounts
from replay.traces.ideal import ideal_hit_ratio
from replay.traces.trace import Chat, Trace

SILENCE_S = 600.0
"""Past the knee of its load a fleet lets requests wait for minutes: a replay shows that instead of cutting it off."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a trace goes and how. `api` None: chat for a trace with chats, else completions. `model` None: the only one
    that is served there. Token ids of prompts come from `vocabulary`, and are others for another `seed`. `workers` are
    the URLs whose counters say who did what."""

    url: str
    api: Api | None
    model: str | None
    vocabulary: range
    seed: int
    workers: tuple[str, ...]


async def replay_live(trace: Trace, load: LoadSpec, target: Target, on_ended: Callable[[], object]) -> LiveResult:
    """Raises UnusableEndpoint before anything was sent, and NothingAnswered."""
    api = target.api or _usual_api(trace)
    async with open_session(SILENCE_S) as session:
        model = await served_model(session, target.url, target.model)
        client = LoadClient(session, target.url, api, model.name)
        prompt_of = await make_prompts(trace, client, target.vocabulary, target.seed)
        before = await _counters(session, target.workers)
        sent = await LiveRun(trace, load, client, prompt_of, on_ended=on_ended).run()
        counted = await _counted_since(before, session)
    infinite_hit_ratio = ideal_hit_ratio(trace) if trace.has_prefixes else None
    return LiveResult(
        trace, load, target.url, api, model.name, target.seed, live_report(sent, counted), infinite_hit_ratio
    )


def _usual_api(trace: Trace) -> Api:
    return Api.CHAT if any(isinstance(request.prompt, Chat) for request in trace.requests) else Api.COMPLETIONS


async def _counted_since(before: Mapping[str, TokenCounts], session: aiohttp.ClientSession) -> dict[str, TokenCounts]:
    """Empty if one of the workers is gone by now: what it did, and so its share, cannot be known."""
    try:
        after = await _counters(session, list(before))
    except UnusableEndpoint:
        return {}
    return {worker: after[worker] - before[worker] for worker in before}


async def _counters(session: aiohttp.ClientSession, workers: Sequence[str]) -> dict[str, TokenCounts]:
    return {worker: await read_counters(session, worker) for worker in workers}
