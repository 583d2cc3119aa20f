"""`warmroute demo` as a user runs it: real workers, real router, the model that is made on the spot."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "warmroute", "demo", "--model", "tiny-random", "--json"]
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def finished() -> subprocess.CompletedProcess[str]:
    return subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.fixture
def running() -> Iterator[subprocess.Popen[str]]:
    """A demo that has both workers and a router under it."""
    with subprocess.Popen(COMMAND, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: len(children(process)) == 3)
        yield process
        process.kill()


def children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_stdout_is_one_json_object_of_both_policies(finished):
    assert finished.returncode == 0, finished.stderr
    report = json.loads(finished.stdout)
    assert report.keys() == {"model", "workers", "policies", "largest_hit_ratio", "outputs_identical"}
    assert (report["model"], report["workers"]) == ("tiny-random", 2)
    assert list(report["policies"]) == ["round_robin", "expected_work"]
    for policy in report["policies"].values():
        assert policy["requests"] == 60
        assert policy["hit_ratio"] == pytest.approx(policy["cached_tokens"] / policy["prompt_tokens"], abs=1e-4)
        assert 0 < policy["hit_ratio"] <= report["largest_hit_ratio"] < 1
        assert 0 < policy["ttft_ms"]["p50"] <= policy["ttft_ms"]["p99"]


def test_expected_work_finds_more_in_cache_than_round_robin(finished):
    policies = json.loads(finished.stdout)["policies"]
    assert policies["expected_work"]["hit_ratio"] > policies["round_robin"]["hit_ratio"]


def test_expected_work_predicts_what_engines_report(finished):
    """Not asked of round robin: what waits in its crowded caches may be evicted before its turn comes."""
    policy = json.loads(finished.stdout)["policies"]["expected_work"]
    assert policy["predicted_cached_tokens"] == pytest.approx(policy["cached_tokens"], rel=0.02)


def test_caching_changes_no_answer(finished):
    assert json.loads(finished.stdout)["outputs_identical"] is True


def test_progress_goes_to_stderr(finished):
    for shown in ("starting 2 workers", "round_robin", "expected_work", "60/60"):
        assert shown in finished.stderr


@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_everything(running, signum, exit_code):
    started = children(running)
    running.send_signal(signum)
    stdout, stderr = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == exit_code
    assert stdout == ""
    assert "Traceback" not in stderr
    assert not [process for process in started if process.is_running()]


def test_a_worker_that_dies_ends_everything_and_is_named(running):
    started = children(running)
    next(process for process in started if "worker" in process.cmdline()).kill()
    stdout, stderr = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == 1
    assert stdout == ""
    assert re.search(r"worker-[12] was killed by SIGKILL", stderr)
    assert "Traceback" not in stderr
    assert not [process for process in started if process.is_running()]


def test_an_unknown_model_is_an_error_that_names_it(tmp_path):
    command = [*COMMAND[:-3], "--model", str(tmp_path / "nothing-here")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 1
    assert "nothing-here" in done.stderr
    assert "Traceback" not in done.stderr
