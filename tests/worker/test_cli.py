"""The command itself: a real process with a real model, and what it says when it cannot start."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from worker.cli import worker

FRONT_DOOR = Path(__file__).parents[2] / "warmroute.py"
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where aliases are built, once for all tests here."""
    home = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home))
        yield home


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(FRONT_DOOR), "worker", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )


def refused(*arguments: str) -> Result:
    """The result of a command that must not start."""
    result = CliRunner().invoke(worker, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result


def test_it_serves_until_it_is_told_to_stop(cache_home: Path) -> None:
    process = start("--model", "tiny-random", "--port", "0", "--threads", "1", "--served-model-name", "tiny")
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        url = ready.partition("ready at ")[2].partition(";")[0]
        assert ready.startswith("tiny is ready at http://127.0.0.1:")
        assert "KV events at tcp://127.0.0.1:" in ready
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "temperature": 0}
        answers = [httpx.post(f"{url}/v1/chat/completions", json=body, timeout=TIMEOUT_S).json() for _ in range(2)]
        assert answers[0]["choices"][0]["message"] == answers[1]["choices"][0]["message"]
        usages = [answer["usage"] for answer in answers]
        full_blocks = (usages[0]["prompt_tokens"] - 1) // 16
        assert full_blocks > 0
        assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 16 * full_blocks]
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0
    assert rest == ""
    assert "Traceback" not in errors


def test_a_port_in_use_is_said_on_stderr_before_any_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("--model", "no such model", "--port", str(port))
        output, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 2
    assert output == ""
    assert errors.strip() == f"Error: cannot listen on 127.0.0.1:{port}: Address already in use"


def test_a_package_that_is_missing_is_named(model_dir: Path) -> None:
    script = "import sys; sys.modules['torch'] = None; from warmroute import main; main()"
    command = [sys.executable, "-c", script, "worker", "--model", str(model_dir), "--port", "0"]
    result = subprocess.run(command, cwd=FRONT_DOOR.parent, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert line == "Error: the package 'torch' is not installed: pip install 'warmroute[worker]'"
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Missing option '--model'"),
        (["--model", "tiny-random", "--device", "tpu"], "'tpu' is not one of"),
        (["--model", "tiny-random", "--block-size", "0"], "0 is not in the range x>=1"),
        (["--model", "tiny-random", "--port", "70000"], "70000 is not in the range"),
        (["--model", "tiny-random", "--nonsense"], "No such option"),
        (["--model", "tiny-random", "--timing", "polynomial"], "--timing is for --engine sim only"),
        (["--model", "tiny-random", "--engine", "sim", "--device", "cpu"], "--device is for --engine torch only"),
        (["--model", "tiny-random", "--engine", "sim", "--threads", "1"], "--threads is for --engine torch only"),
        (["--model", "tiny-random", "--engine", "sim", "--seed", "1"], "--seed is for --engine torch only"),
        (["--model", "tiny-random", "--engine", "sim", "--timing", "quick"], "unknown timing 'quick'"),
        (["--model", "tiny-random", "--engine", "sim", "--timing", "profile:no"], "No such file or directory: 'no'"),
    ],
)
def test_bad_flags_are_named(arguments: list[str], says: str) -> None:
    assert says in refused(*arguments).stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "{here}"], "holds no model: it has no config.json"),
        (["--model", "/no/such/directory"], "no model '/no/such/directory'"),
        (["--model", "tiny-random", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1:0"),
        (["--model", "tiny-random", "--kv-events", "udp://x"], "'udp://x': must be tcp://HOST:PORT or ipc://PATH"),
        (["--model", "tiny-random", "--max-model-len", "100000"], "max_model_len is 100000"),
        (["--model", "tiny-random", "--blocks", "4", "--max-model-len", "100"], "holds 64 tokens"),
        (["--model", "tiny-random", "--max-num-seqs", "9", "--max-batched-tokens", "8"], "max_batched_tokens"),
        (["--model", "{here}/unclear", "--engine", "sim"], "names no max_position_embeddings: give max_model_len"),
        (["--model", "{here}/untold", "--engine", "sim"], "no tokenizer can be loaded from"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(
    cache_home: Path, model_dir: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    shutil.copytree(model_dir, tmp_path / "unclear")
    (tmp_path / "untold").mkdir()
    for name in ("unclear", "untold"):
        (tmp_path / name / "config.json").write_text('{"model_type": "llama"}')
    result = refused("--port", "0", *(argument.format(here=tmp_path) for argument in arguments))
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert says in line
