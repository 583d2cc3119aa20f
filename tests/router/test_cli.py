"""The command as a user meets it: what it accepts, and what it says of what it does not."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import router.cli
from router.config import RouterConfig, WorkerSpec

ROOT = Path(__file__).parents[2]


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command and returns the config that it would serve, or its exit code and what it says."""
    served: list[RouterConfig] = []
    monkeypatch.setattr(router.cli, "serve", served.append)

    def run(*args: str) -> RouterConfig | tuple[int, str]:
        result = CliRunner().invoke(router.cli.router, args)
        return served.pop() if result.exit_code == 0 else (result.exit_code, " ".join(result.output.split()))

    return run


def test_defaults_are_those_of_the_config(parse: Any) -> None:
    assert parse() == RouterConfig()


def test_workers(parse: Any) -> None:
    config = parse(
        "--worker", "http://a:1", "--worker", "http://b:2,events=tcp://b:5557,replay=tcp://b:5558,topic=kv@b"
    )
    assert config.worker == (
        WorkerSpec("http://a:1"),
        WorkerSpec("http://b:2", "tcp://b:5557", "tcp://b:5558", "kv@b"),
    )


def test_a_file_has_the_same_names_and_the_command_line_wins(parse: Any, tmp_path: Path) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(
        "worker:\n  - http://a:1\n  - {url: 'http://b:2', events: 'tcp://b:5557'}\n"
        "policy: round_robin\nport: 9000\nseed: 7\n"
    )
    config = parse("--config", str(path), "--port", "9001")
    assert config.worker == (WorkerSpec("http://a:1"), WorkerSpec("http://b:2", "tcp://b:5557"))
    assert (config.policy, config.port, config.seed) == ("round_robin", 9001, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("polcy: random", r"router.yaml: unknown key 'polcy'; allowed: worker, policy, host"),
        ("- a", "must hold `name: value` lines, not list"),
        ("port: [", "router.yaml: while parsing"),
        ("port: eighty", "'eighty' is not a valid integer"),
        ("policy: fastest", "unknown policy 'fastest': one of"),
        ("worker: [{uri: x}]", "uri='x' is not one of url, events, replay, topic"),
    ],
)
def test_bad_files(parse: Any, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "router.yaml"
    path.write_text(text)
    code, output = parse("--config", str(path))
    assert (code, message in output) == (2, True), output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--worker", "a:1"], "worker URL 'a:1' must look like http://HOST:PORT"),
        (["--worker", "http://a:1,event=tcp://b:1"], "event='tcp://b:1' is not one of url, events"),
        (["--worker", "http://a:1,events=b:1"], "must be tcp://HOST:PORT"),
        (["--worker", "http://a:1,topic=x"], "replay= and topic= go with events="),
        (["--policy", "expected_work:omega=-1"], "omega must be a number >= 0"),
        (["--port", "70000"], "0<=x<=65535"),
        (["--max-attempts", "0"], "x>=1"),
        (["--processes", "0"], "x>=1"),
        (["--config", "/nowhere.yaml"], "No such file"),
        (["--nonsense"], "No such option"),
    ],
)
def test_bad_options(parse: Any, args: list[str], message: str) -> None:
    code, output = parse(*args)
    assert (code, message in output) == (2, True), output


def test_every_config_field_is_an_option_and_documented() -> None:
    options = {p.name: p for p in router.cli.router.params if isinstance(p, click.Option)}
    assert set(router.cli.DEFAULTS) == set(options) - {"config"}
    assert all(option.help for option in options.values())


def spawn(*args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "warmroute", "router", *args]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"})


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = spawn("--port", str(server.getsockname()[1]))
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "cannot listen on 127.0.0.1" in stderr
    assert "Traceback" not in stderr


def test_starts_says_where_and_ends_on_sigterm() -> None:
    process = spawn("--port", "0")
    assert process.stderr is not None
    line = next(line for line in process.stderr if "listens on" in line)
    match = re.search(r"http://127\.0\.0\.1:(\d+)", line)
    assert match is not None
    socket.create_connection(("127.0.0.1", int(match[1])), timeout=10).close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    process.stderr.close()


def test_the_router_runs_without_torch() -> None:
    """As in an image that has only the router's dependencies."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from click.testing import CliRunner; import warmroute\n"
        "result = CliRunner().invoke(warmroute.main, ['router', '--help'])\n"
        "assert '--worker' in result.output, result.output\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
