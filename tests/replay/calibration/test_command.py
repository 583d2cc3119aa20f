"""`warmroute replay --calibrate URL` as a user meets it."""

from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from replay.cli import replay
from worker.timing import Profile, make_timing


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "profile.json"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(replay, [str(argument) for argument in arguments])


def test_a_profile_that_a_simulation_can_use(apart, output):
    apart.step_s = 0.001
    result = run("--calibrate", apart.url, "--output", output, "--longest-prompt", 256, "--sequences", 2)
    assert result.exit_code == 0, result.output
    assert isinstance(make_timing(f"profile:{output}"), Profile)
    shown = " ".join(result.stdout.split())
    assert shown.count("first token") == 7
    assert "prefill_token_squared_ms" in shown
    assert "% in the mean" in shown
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert max(len(body["prompt"]) for body in apart.bodies) == 256


def test_prompts_leave_room_for_the_answer_in_the_models_context(apart, output):
    apart.step_s = 0.001
    apart.models = [{"id": "fake", "max_model_len": 164}]
    assert run("--calibrate", apart.url, "--output", output, "--sequences", 1).exit_code == 0
    assert max(len(body["prompt"]) for body in apart.bodies) == 100


def test_a_context_that_is_too_small(apart, output):
    apart.models = [{"id": "fake", "max_model_len": 64}]
    result = run("--calibrate", apart.url, "--output", output)
    assert result.exit_code == 1
    assert "fake has a context of 64 tokens, too few to measure" in " ".join(result.output.split())
    assert not output.exists()


def test_a_worker_that_fails(apart, output):
    async def busy(request: web.Request, body: dict) -> web.StreamResponse:
        return apart.refuse("no room", 503)

    apart.handler = busy
    result = run("--calibrate", apart.url, "--output", output)
    assert result.exit_code == 1
    assert "answered 503: no room" in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--calibrate", "http://127.0.0.1:1"], "--calibrate needs --output FILE"),
        (["--calibrate", "http://127.0.0.1:1", "--output", "/no/such/folder/p.json"], "there is no folder"),
        (["--calibrate", "http://127.0.0.1:1", "--live", "http://127.0.0.1:1"], "exclude each other"),
        (["--calibrate", "http://127.0.0.1:1", __file__], "--calibrate takes no TRACE"),
        (["--calibrate", "http://127.0.0.1:1", "--speedup", "2"], "--speedup does not go with --calibrate"),
        (["--calibrate", "127.0.0.1:8000"], "is no URL of a server"),
        (["--output", "p.json", __file__], "--output does not go with a simulation: it is for --calibrate"),
        ([], "Missing argument 'TRACE'"),
    ],
)
def test_what_does_not_go_together(arguments, problem):
    result = run(*arguments)
    assert result.exit_code == 2
    assert problem in " ".join(result.output.split())


def test_help_tells_which_options_go_with_what():
    shown = run("--help").output
    sections = [line for line in shown.splitlines() if line.startswith("Options")]
    assert sections == [
        "Options:",
        "Options for a simulation and --live:",
        "Options for a simulation:",
        "Options for --live and --calibrate:",
        "Options for --live:",
        "Options for --calibrate:",
    ]
