"""What is written as Mooncake JSON lines is what is read again."""

from dataclasses import replace

import orjson
import pytest

from replay.traces.blocks import rechunked
from replay.traces.ideal import ideal_hit_ratio
from replay.traces.mix import Mix, generate_mix
from replay.traces.reader import read_trace
from replay.traces.writer import write_mooncake


@pytest.mark.parametrize("name", ["mooncake.jsonl", "mooncake_sessions.jsonl", "tracelab.jsonl"])
def test_blocks_of_512_tokens_come_back_as_they_were(samples, tmp_path, name):
    trace = read_trace(samples / name)
    write_mooncake(trace, tmp_path / "out")
    assert read_trace(tmp_path / "out") == replace(trace, format="mooncake")


@pytest.mark.parametrize("name", ["dynamo_recorder.jsonl", "bailian.jsonl", "weka_v8.json", "lmcache.jsonl"])
def test_other_blocks_come_back_if_written_in_their_size(samples, tmp_path, name):
    trace = read_trace(samples / name)
    write_mooncake(trace, tmp_path / "out", trace.block_tokens)
    again = read_trace(tmp_path / "out")
    numbers: dict[int, int] = {}
    renumbered = tuple(
        replace(r, prompt=None, hash_ids=tuple(numbers.setdefault(each, len(numbers)) for each in r.hash_ids))
        for r in trace.requests
    )
    assert again.requests == renumbered


def test_larger_blocks_keep_what_whole_ones_share(tmp_path):
    trace = generate_mix(Mix(sessions=30))
    write_mooncake(trace, tmp_path / "out")
    again = read_trace(tmp_path / "out")
    assert again.block_tokens == 512
    for caches in (1, 4):
        assert ideal_hit_ratio(again, caches) == ideal_hit_ratio(rechunked(trace, 512), caches)


def test_lengths_are_written_without_hashes(samples, tmp_path):
    trace = read_trace(samples / "azure.csv")
    write_mooncake(trace, tmp_path / "out")
    assert read_trace(tmp_path / "out") == replace(trace, format="mooncake")


def test_the_lines_are_mooncakes(samples, tmp_path):
    write_mooncake(read_trace(samples / "mooncake_sessions.jsonl"), tmp_path / "out")
    lines = [orjson.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert lines == [
        {"timestamp": 10, "session_id": "a", "input_length": 600, "output_length": 40, "hash_ids": [0, 1]},
        {"delay": 2500, "session_id": "a", "input_length": 1024, "output_length": 3, "hash_ids": [0, 2]},
        {"timestamp": 0, "session_id": "b", "input_length": 512, "output_length": 1, "hash_ids": [3]},
    ]
