"""Workers' counters, as they stand in their /metrics."""

from pathlib import Path

import pytest
from aiohttp import web

from replay.errors import UnusableEndpoint
from replay.live.counters import read_counters
from replay.measures import TokenCounts

REAL_VLLM = Path(__file__).parents[2] / "data" / "vllm_metrics_sample.txt"
VLLM = """
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1200.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 300.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 640.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 16.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 50.0
"""
SGLANG = """
# TYPE sglang:prompt_tokens_total counter
sglang:prompt_tokens_total{model_name="m"} 128.0
# TYPE sglang:cached_tokens_total counter
sglang:cached_tokens_total{model_name="m",cache_source="device"} 64.0
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="m"} 9.0
"""


async def read(serve, session, text: str, status: int = 200) -> TokenCounts:
    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=text, status=status)

    return await read_counters(session, await serve(metrics))


@pytest.fixture
async def serve():
    """Serves one handler at /metrics, and gives the URL."""
    runners = []

    async def start(handler) -> str:
        app = web.Application()
        app.router.add_get("/metrics", handler)
        runner = web.AppRunner(app)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return "http://{}:{}".format(*runner.addresses[0][:2])

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_all_ranks_of_a_vllm_together(serve, session):
    assert await read(serve, session, VLLM) == TokenCounts(1500, 656, 50)


async def test_an_sglang(serve, session):
    assert await read(serve, session, SGLANG) == TokenCounts(128, 64, 9)


async def test_a_real_vllm_that_was_asked_nothing_yet(serve, session):
    assert await read(serve, session, REAL_VLLM.read_text()) == TokenCounts(0, 0, 0)


async def test_the_difference_of_two_readings(fake, session):
    before = await read_counters(session, fake.url)
    fake.counted["prompt_tokens"] += 20
    assert await read_counters(session, fake.url) - before == TokenCounts(20, 0, 0)


@pytest.mark.parametrize(("text", "status"), [("python_gc_total 1\n", 200), ("<html>", 200), (VLLM, 500)])
async def test_no_counters_is_an_error_that_names_them(serve, session, text, status):
    with pytest.raises(
        UnusableEndpoint, match=f"/metrics answered {status} without vllm:prompt_tokens_total or sglang"
    ):
        await read(serve, session, text, status)


async def test_nobody_listening_is_an_error(session, unused_tcp_port):
    with pytest.raises(UnusableEndpoint, match=f"127.0.0.1:{unused_tcp_port}/metrics"):
        await read_counters(session, f"http://127.0.0.1:{unused_tcp_port}")
