"""`warmroute replay` as a user meets it: what it prints and writes, and how it refuses."""

from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result

from replay.cli import replay

ROWS = [
    {"timestamp": number * 200, "input_length": 1500, "output_length": 20, "hash_ids": [number % 3, 10 + number, 99]}
    for number in range(40)
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(map(orjson.dumps, ROWS)))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(replay, [str(argument) for argument in arguments])


def test_a_table_for_people(trace: Path) -> None:
    result = run(trace, "--workers", 2)
    assert result.exit_code == 0, result.output
    assert "40 requests (mooncake), 2 workers of 16,384 blocks of 64 tokens" in result.stdout
    assert "expected_work" in result.stdout
    assert "round_robin" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_json_has_all_that_is_promised(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = run(trace, "--policy", "default,dynamo:prefill_load_scale=16", "--policy", "random", "--json", path)
    assert result.exit_code == 0, result.output
    written = orjson.loads(path.read_bytes())
    assert written["trace"] == {"rows": 40, "span_s": 7.8, "input_tokens": 60_000, "format": "mooncake"}
    assert (written["fleet"]["workers"], written["fleet"]["timing"]) == (8, {"name": "polynomial"})
    assert set(written["bounds"]) == {"infinite", "pooled_lru", "pooled_belady"}
    assert list(written["policies"]) == ["expected_work", "dynamo:prefill_load_scale=16", "random"]
    for policy in written["policies"].values():
        assert set(policy) == {
            "hit_ratio",
            "ttft_ms",
            "itl_ms",
            "e2e_ms",
            "load_cv",
            "max_share",
            "regret",
            "predicted_hit_ratio",
            "rejected",
            "wall_s",
        }
        assert set(policy["ttft_ms"]) == set(policy["itl_ms"]) == {"mean", "p50", "p90", "p99"}
        assert set(policy["regret"]) == {"capacity", "routing", "index", "latency_ms"}


def test_the_page_names_trace_and_policies(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "result.html"
    result = run(trace, "--limit", 10, "--html", path)
    assert result.exit_code == 0, result.output
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert all(name in page for name in ("trace.jsonl", "expected_work", "round_robin"))


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_place_to_write_is_checked_before_anything_runs(trace: Path, tmp_path: Path, option: str) -> None:
    result = run(trace, option, tmp_path / "none" / "result")
    assert result.exit_code == 2
    assert "there is no folder" in " ".join(result.output.split())
    assert "central queue" not in result.output


def test_all_policies_run(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = run(trace, "--policy", "all", "--limit", 10, "--json", path)
    assert result.exit_code == 0, result.output
    assert len(orjson.loads(path.read_bytes())["policies"]) >= 16


def test_every_option_reaches_the_scenario(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    options = {
        "workers": 3,
        "blocks": 500,
        "block-size": 32,
        "max-batched-tokens": 1024,
        "max-num-seqs": 16,
        "timing": "linear:9000,5",
        "speedup": 2,
        "concurrency": 4,
        "lag-s": 0.1,
        "loss": 0.1,
        "duplication": 0.2,
        "reorder": 0.3,
        "restart": "2@1.5",
        "seed": 5,
    }
    arguments = [each for name, value in options.items() for each in (f"--{name}", value)]
    result = run(trace, *arguments, "--closed-loop", "--step-by-step", "--json", path)
    assert result.exit_code == 0, result.output
    assert orjson.loads(path.read_bytes())["fleet"] == {
        "timing": {"name": "linear", "prefill_tokens_per_s": 9000.0, "step_ms": 5.0},
        "workers": 3,
        "blocks": 500,
        "block_size": 32,
        "max_batched_tokens": 1024,
        "max_num_seqs": 16,
        "speedup": 2.0,
        "closed_loop": True,
        "concurrency": 4,
        "lag_s": 0.1,
        "loss": 0.1,
        "duplication": 0.2,
        "reorder": 0.3,
        "restarts": [{"worker": 2, "at_s": 1.5}],
        "seed": 5,
    }


def test_a_trace_of_lengths_says_that_hits_cannot_be_known(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
    )
    result = run(path, "--json", tmp_path / "result.json")
    assert result.exit_code == 0, result.output
    assert "any hit, cannot be known" in " ".join(result.stdout.split())
    assert orjson.loads((tmp_path / "result.json").read_bytes())["bounds"] is None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--policy", "best"], "unknown policy 'best'"),
        (["--timing", "fast"], "unknown timing 'fast'"),
        (["--timing", "profile:/no/such/file"], "No such file"),
        (["--restart", "0"], "expected WORKER@SECONDS"),
        (["--restart", "8@1"], "the last worker is 7"),
        (["--restart", "-1@1"], "workers count from 0"),
        (["--speedup", "0"], "0.0 is not in the range"),
        (["--loss", "1"], "1.0 is not in the range"),
        (["--max-batched-tokens", "100"], "must be at least --max-num-seqs"),
        (["--blocks", "3"], "every request failed"),
    ],
)
def test_wrong_options_are_refused_with_what_is_allowed(trace: Path, arguments: list[str], problem: str) -> None:
    result = run(trace, *arguments)
    assert result.exit_code in (1, 2)
    assert problem in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_a_malformed_trace_is_told_by_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1}\n{"timestamp": 0, "input_length": "x"}\n')
    result = run(path)
    assert result.exit_code == 2
    assert "line 2" in " ".join(result.output.split())
