"""`warmroute worker --engine sim` as a process: what clients, routers and subscribers see of it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kv_events.deliveries import Batch, Synced
from kv_events.events import BlockStored
from kv_events.sources import EventSource, parse_event_sources
from kv_events.subscriber import Subscriber, Switchboard
from worker.sim_runner import ANSWER

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60
WITHOUT_TORCH = """
import atexit, sys
atexit.register(lambda: print("torch" in sys.modules))
from warmroute import main
main()
"""


def start(model_dir: Path, *options: str) -> tuple[subprocess.Popen[str], str]:
    """The process, which says at its end whether it has imported torch, and its URL."""
    command = [sys.executable, "-c", WITHOUT_TORCH, "worker", "--engine", "sim", "--port", "0"]
    command += ["--model", str(model_dir), "--served-model-name", "sim", "--timing", "linear:1e9,1", *options]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    assert process.stdout is not None
    return process, process.stdout.readline().partition("ready at ")[2].partition(";")[0]


@pytest.fixture(scope="module")
def client(model_dir: Path) -> Iterator[httpx.Client]:
    """One worker for all tests here, each of which has prompts of its own."""
    process, url = start(model_dir, "--max-model-len", "200000", "--block-size", "64", "--max-batched-tokens", "8192")
    try:
        with httpx.Client(base_url=url, timeout=TIMEOUT_S) as client:
            yield client
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)


def post(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def cached_tokens(answer: dict[str, Any]) -> int:
    cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return cached


def test_a_repeated_prompt_is_cached_in_whole_blocks(client: httpx.Client) -> None:
    prompt = [1, *[5] * 200]
    answers = [post(client, "/v1/completions", prompt=prompt, max_tokens=1) for _ in range(2)]
    assert [cached_tokens(answer) for answer in answers] == [0, 192]


def test_the_next_turn_finds_the_answer_cached(client: httpx.Client) -> None:
    messages = [{"role": "user", "content": "second"}]
    first = post(client, "/v1/chat/completions", messages=messages, max_tokens=200)
    messages += [first["choices"][0]["message"], {"role": "user", "content": "more"}]
    second = post(client, "/v1/chat/completions", messages=messages, max_tokens=1)
    assert cached_tokens(second) == (first["usage"]["total_tokens"] - 1) // 64 * 64 > 64


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_answers_are_as_long_as_asked(client: httpx.Client, ignore_eos: bool) -> None:
    answer = post(client, "/v1/completions", prompt="third", max_tokens=130, ignore_eos=ignore_eos)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 130
    assert choice["text"] == (ANSWER * 130)[:130]  # this tokenizer has a token for each byte


def test_a_chat_that_says_no_length_gets_an_end(client: httpx.Client) -> None:
    answer = post(client, "/v1/chat/completions", messages=[{"role": "user", "content": "fourth"}])
    assert answer["usage"]["completion_tokens"] == 256


def test_prompts_may_be_longer_than_the_models_context(client: httpx.Client) -> None:
    answer = post(client, "/v1/completions", prompt=[9] * 120_000, max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == 120_000


def test_metrics_are_vllms(client: httpx.Client) -> None:
    text = client.get("/metrics").text
    assert "vllm:num_requests_running" in text
    (config,) = [line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")]
    assert 'block_size="64"' in config
    assert 'num_gpu_blocks="16384"' in config


def test_subscribers_see_its_blocks(client: httpx.Client) -> None:
    prompt = [2, *[7] * 129]
    post(client, "/v1/completions", prompt=prompt, max_tokens=1)
    (source,) = parse_event_sources(client.get("/kv_event_sources").json(), "127.0.0.1")
    events = [event for batch in asyncio.run(replayed(source)) for event in batch.batch.events]
    (stored,) = [event for event in events if isinstance(event, BlockStored) and list(event.token_ids) == prompt[:128]]
    assert (stored.block_size, len(stored.block_hashes), stored.parent_block_hash) == (64, 2, None)


async def replayed(source: EventSource) -> list[Batch]:
    """What a new subscriber hears until it knows everything."""
    deliveries: asyncio.Queue[Any] = asyncio.Queue()
    switchboard = Switchboard()
    subscriber = Subscriber(source, deliveries.put_nowait, switchboard)
    subscriber.start()
    heard = []
    async with asyncio.timeout(TIMEOUT_S):
        while not isinstance(delivery := await deliveries.get(), Synced):
            heard.append(delivery)
    await subscriber.close()
    await switchboard.close()
    return [delivery for delivery in heard if isinstance(delivery, Batch)]


def test_it_never_imports_torch(model_dir: Path) -> None:
    process, url = start(model_dir)
    try:
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=TIMEOUT_S).status_code == 200
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert rest == "False\n"
