"""What the workers behind an endpoint say that they computed, whoever sent it there: the balance of any router."""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from replay.errors import UnusableEndpoint
from replay.measures import TokenCounts

COUNTERS = {
    "vllm": ("vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total", "vllm:generation_tokens_total"),
    "sglang": ("sglang:prompt_tokens_total", "sglang:cached_tokens_total", "sglang:generation_tokens_total"),
}
"""Of prompts, of those found in the cache, of answers. Warmroute's own workers use vLLM's names."""


async def read_counters(session: aiohttp.ClientSession, worker: str) -> TokenCounts:
    """Since the worker began, over all its data-parallel ranks. Raises UnusableEndpoint."""
    url = f"{worker}/metrics"
    try:
        async with session.get(url) as response:
            text = await response.text()
    except (aiohttp.ClientError, OSError) as error:
        raise UnusableEndpoint(f"{url}: {str(error) or type(error).__name__}") from error
    values = _values(text) if response.status == 200 else {}
    for prompts, hits, answers in COUNTERS.values():
        if prompts in values:
            return TokenCounts(*(int(values.get(name, 0)) for name in (prompts, hits, answers)))
    wanted = " or ".join(prompts for prompts, *_ in COUNTERS.values())
    raise UnusableEndpoint(f"{url} answered {response.status} without {wanted}")


def _values(text: str) -> Mapping[str, float]:
    """Of each metric, summed over its labels; nothing for what is no such text."""
    values: defaultdict[str, float] = defaultdict(float)
    with suppress(ValueError):
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values[sample.name] += sample.value
    return values
