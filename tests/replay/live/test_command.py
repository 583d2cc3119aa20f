"""`warmroute replay TRACE --live URL` as a user meets it."""

from pathlib import Path

import orjson
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from replay.cli import replay

ROWS = [
    {"timestamp": number, "input_length": 1500, "output_length": 3, "hash_ids": [number % 3, 10 + number, 99 + number]}
    for number in range(40)
]
CHATS = [{"timestamp": 0, "messages": [{"role": "user", "content": "hello"}], "output_length": 2}]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "trace.jsonl", ROWS)


def write(path: Path, rows: list[dict]) -> Path:
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(replay, [str(argument) for argument in arguments])


def test_tables_for_people(apart, trace):
    result = run(trace, "--live", apart.url + "/v1", "--worker-url", apart.url)
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())
    assert f"40 requests (mooncake) to {apart.url} in " in shown
    assert "fake 31.6 " in shown
    assert f"{apart.url} 60,000 31.6 120 100.0" in shown, "the only worker did all the work"
    assert "Hit ratio of an endless cache" in shown
    assert "p99) after they were due" in shown
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_json_has_the_simulators_names_and_more(apart, trace, tmp_path):
    path = tmp_path / "result.json"
    options = ["--speedup", 5, "--concurrency", 9, "--closed-loop", "--seed", 4, "--worker-url", apart.url]
    result = run(trace, "--live", apart.url, *options, "--json", path)
    assert result.exit_code == 0, result.output
    written = orjson.loads(path.read_bytes())
    assert written["trace"] == {"rows": 40, "span_s": 0.039, "input_tokens": 60_000, "format": "mooncake"}
    assert written["endpoint"] == {"url": apart.url, "api": "completions", "model": "fake"}
    assert written["load"] == {"speedup": 5.0, "closed_loop": True, "concurrency": 9, "seed": 4}
    live = written["live"]
    assert written["bounds"]["infinite"] == pytest.approx(live["hit_ratio"], abs=0.001)
    assert set(live["ttft_ms"]) == set(live["lag_ms"]) == {"mean", "p50", "p90", "p99"}
    assert live["tokens"] == {"input": 60_000, "cached": 18_944, "output": 120}
    assert live["workers"] == {apart.url: live["tokens"]}
    assert (live["requests"], live["rejected"], live["failures"]) == (40, 0, [])
    assert (live["max_share"], live["load_cv"], live["predicted_hit_ratio"]) == (1.0, None, None)


def test_each_run_has_prompts_of_its_own_unless_a_seed_is_given(apart, trace):
    """Caches remember: prompts of a run before would all be hits."""
    for options in [(), (), ("--seed", 1), ("--seed", 1)]:
        assert run(trace, "--live", apart.url, "--limit", 1, *options).exit_code == 0
    prompts = [body["prompt"] for body in apart.bodies if len(body["prompt"]) > 1]
    assert prompts[0] != prompts[1]
    assert prompts[2] == prompts[3]


def test_a_window_of_the_trace(apart, trace):
    assert run(trace, "--live", apart.url, "--window-s", 0.01).exit_code == 0
    assert len(apart.bodies) == 1 + 10


def test_chats_go_to_the_chat_api_by_themselves(apart, tmp_path):
    path = write(tmp_path / "chats.jsonl", CHATS)
    assert run(path, "--live", apart.url).exit_code == 0
    assert apart.bodies[-1]["messages"] == CHATS[0]["messages"]
    refused = run(path, "--live", apart.url, "--api", "completions")
    assert refused.exit_code == 2
    assert "takes no chats" in " ".join(refused.output.split())


def test_some_failures_are_shown_with_the_reason(apart, trace):
    async def moody(request: web.Request, body: dict) -> web.StreamResponse:
        return apart.refuse("no room", 503) if len(apart.bodies) > 11 else await apart.answer(request, body)

    apart.handler = moody
    result = run(trace, "--live", apart.url)
    assert result.exit_code == 0
    assert "Failed: 30 requests" in " ".join(result.stdout.split())
    assert "answered 503: no room" in " ".join(result.stdout.split())


def test_all_failed_is_a_failure(apart, trace):
    async def busy(request: web.Request, body: dict) -> web.StreamResponse:
        return apart.refuse("no room", 503) if len(apart.bodies) > 1 else await apart.answer(request, body)

    apart.handler = busy
    result = run(trace, "--live", apart.url)
    assert result.exit_code == 1
    assert "every request failed" in result.output
    assert "answered 503: no room" in " ".join(result.output.split())


def test_a_cache_of_which_nothing_is_said(apart, trace):
    apart.reports_cached = False
    result = run(trace, "--live", apart.url)
    assert result.exit_code == 0
    assert "does not say what was cached" in " ".join(result.stdout.split())


def test_workers_that_did_nothing_or_are_gone_spoil_no_report(apart, trace):
    async def counters_go(request: web.Request, body: dict) -> web.StreamResponse:
        if body["max_tokens"] > 1:  # the load, no longer the question before it
            apart.counted.clear()
        return await apart.answer(request, body)

    apart.count = lambda *tokens: None
    result = run(trace, "--live", apart.url, "--limit", 3, "--worker-url", apart.url)
    assert result.exit_code == 0, result.output
    assert f"{apart.url} 0 - 0 -" in " ".join(result.stdout.split())
    apart.handler = counters_go
    result = run(trace, "--live", apart.url, "--limit", 3, "--worker-url", apart.url)
    assert result.exit_code == 0, result.output
    assert "worker" not in result.stdout


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--model", "fake", "--vocab-size", "60000"], "answered 400: token ids go to 49999"),
        (["--worker-url", "http://127.0.0.1:1"], "http://127.0.0.1:1/metrics"),
        (["--policy", "random"], "--policy does not go with --live: it is for a simulation"),
        (["--workers", "4"], "--workers does not go with --live"),
        (["--output", "x.json"], "--output does not go with --live: it is for --calibrate"),
        (["--api", "responses"], "'responses' is not one of 'chat', 'completions'"),
        (["--json", "/no/such/folder/x.json"], "there is no folder /no/such/folder"),
        (["--tokenizer", "/no/such/model"], "no tokenizer can be loaded from '/no/such/model'"),
    ],
)
def test_what_cannot_be_is_refused_before_the_load(apart, trace, options, problem):
    result = run(trace, "--live", apart.url, *options)
    assert result.exit_code == 2
    assert problem in " ".join(result.output.split())
    assert len(apart.bodies) <= 1


def test_an_endpoint_that_is_not_there(trace, unused_tcp_port):
    result = run(trace, "--live", f"http://127.0.0.1:{unused_tcp_port}")
    assert result.exit_code == 2
    assert f"http://127.0.0.1:{unused_tcp_port}/v1/models" in " ".join(result.output.split())
    assert run(trace, "--live", "not-a-url").exit_code == 2


def test_options_of_live_are_refused_elsewhere(trace):
    result = run(trace, "--api", "chat")
    assert result.exit_code == 2
    assert "--api does not go with a simulation: it is for --live" in " ".join(result.output.split())
    assert run("--live", "http://127.0.0.1:1").exit_code == 2
