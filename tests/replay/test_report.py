"""What the demo prints."""

from dataclasses import replace

import orjson
import pytest
from rich.console import Console

from protocol.sse import Usage
from replay.client import Answer
from replay.demo.report import DemoReport, as_json, as_table, policy_report


def answer(prompt_tokens: int, cached_tokens: int, predicted: int, ttft_ms: float) -> Answer:
    usage = Usage(prompt_tokens, 5, cached_tokens)
    return Answer("text", usage, 0.0, ttft_ms, 900.0, "w-1", predicted)


@pytest.fixture
def report() -> DemoReport:
    return DemoReport(
        model="tiny",
        workers=2,
        block_size=16,
        blocks_per_worker=30,
        working_set_blocks=60,
        policies={
            "round_robin": policy_report([answer(100, 0, 0, 300.0), answer(300, 100, 96, 100.0)]),
            "expected_work": policy_report([answer(100, 0, 0, 250.0), answer(300, 240, 240, 50.0)]),
        },
        largest_hit_ratio=0.65,
        outputs_identical=True,
    )


def test_json_has_these_keys_and_numbers(report):
    assert orjson.loads(orjson.dumps(as_json(report))) == {
        "model": "tiny",
        "workers": 2,
        "policies": {
            "round_robin": {
                "requests": 2,
                "prompt_tokens": 400,
                "cached_tokens": 100,
                "hit_ratio": 0.25,
                "ttft_ms": {"mean": 200.0, "p50": 200.0, "p99": 298.0},
                "predicted_cached_tokens": 96,
            },
            "expected_work": {
                "requests": 2,
                "prompt_tokens": 400,
                "cached_tokens": 240,
                "hit_ratio": 0.6,
                "ttft_ms": {"mean": 150.0, "p50": 150.0, "p99": 248.0},
                "predicted_cached_tokens": 240,
            },
        },
        "largest_hit_ratio": 0.65,
        "outputs_identical": True,
    }


def rows(report: DemoReport, width: int) -> dict[str, list[str]]:
    """The table's lines by their first cell, the rest under "remarks"."""
    console = Console(width=width)
    with console.capture() as capture:
        console.print(as_table(report))
    cells = [
        [cell.strip() for cell in line.strip("│┃").split("│" if "│" in line else "┃")]
        for line in capture.get().splitlines()
    ]
    found = {line[0]: line[1:] for line in cells if len(line) > 1}
    return {**found, "remarks": [line[0] for line in cells if len(line) == 1]}


@pytest.mark.parametrize("width", [80, 140])
def test_table_shows_every_number_also_on_a_narrow_terminal(report, width):
    table = rows(report, width)
    assert table[""] == ["round_robin", "expected_work", "largest possible"]
    assert table["requests"] == ["2", "2", ""]
    assert table["cached tokens"] == ["100", "240", ""]
    assert table["as the router predicted"] == ["96", "240", ""]
    assert table["hit ratio"] == ["0.250", "0.600", "0.650"]
    assert table["TTFT mean, ms"] == ["200", "150", ""]
    assert table["TTFT p99, ms"] == ["298", "248", ""]


def test_table_compares_the_two_and_names_the_cache_size(report):
    remarks = "\n".join(rows(report, 140)["remarks"])
    assert "hit ratio x 2.40, mean TTFT x 0.75, answers identical" in remarks
    assert "30 blocks of 16 tokens; the whole workload needs 60" in remarks


def test_different_outputs_and_a_base_of_nothing_are_said(report):
    nothing = policy_report([answer(100, 0, 0, 300.0)])
    worse = replace(report, outputs_identical=False, policies={**report.policies, "round_robin": nothing})
    assert "hit ratio -, mean TTFT x 0.50, answers different" in "\n".join(rows(worse, 140)["remarks"])
