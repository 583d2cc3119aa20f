"""`warmroute trace` as a user meets it."""

import gzip
from dataclasses import fields, replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from replay.traces.cli import MIX_OPTIONS, trace
from replay.traces.generate import SMALL_WORKLOADS, small_workloads
from replay.traces.ideal import ideal_hit_ratio
from replay.traces.mix import Mix, generate_mix
from replay.traces.reader import read_trace


def run(*arguments: object) -> Result:
    return CliRunner().invoke(trace, [str(argument) for argument in arguments])


def cells(result: Result) -> list[list[str]]:
    """The lines of what was printed, by columns."""
    assert result.exit_code == 0, result.output
    return [line.split() for line in result.stdout.splitlines() if line.strip()]


def test_granularity_prints_the_chapters_table():
    assert cells(run("granularity"))[-4:] == [
        ["shared-system-prompt", "89.5%", "88.8%", "86.0%"],
        ["multi-turn", "79.2%", "78.6%", "76.8%"],
        ["few-shot", "89.6%", "87.8%", "81.1%"],
        ["parallel-sampling", "87.1%", "84.2%", "73.3%"],
    ]


def test_ideal_prints_one_cache_and_several_in_turn(samples):
    read = read_trace(samples / "mooncake.jsonl")
    printed = cells(run("ideal", samples / "mooncake.jsonl"))
    assert printed[-1] == [f"{ideal_hit_ratio(read, caches):.3f}" for caches in (1, 2, 4, 8, 16)]


def test_ideal_of_a_published_trace(published):
    printed = cells(run("ideal", published / "mooncake_conversation_full.jsonl.gz"))
    assert printed[-1] == ["0.374", "0.276", "0.196", "0.139", "0.101"]


@pytest.mark.parametrize("sample", ["mooncake.jsonl", "bailian.jsonl", "weka_v8.json", "lmcache.jsonl", "azure.csv"])
def test_convert_keeps_what_its_blocks_can_hold(samples, tmp_path, sample):
    source = read_trace(samples / sample)
    result = run("convert", samples / sample, tmp_path / "out.jsonl", "--block-tokens", source.block_tokens)
    assert result.exit_code == 0, result.output
    assert f"{len(source.requests)} requests, {source.input_tokens:,} prompt tokens" in result.stdout
    written = read_trace(tmp_path / "out.jsonl")
    assert (written.format, written.has_prefixes) == ("mooncake", source.has_prefixes)
    assert [r.input_tokens for r in written.requests] == [r.input_tokens for r in source.requests]
    if source.has_prefixes:
        assert written.block_tokens == source.block_tokens
        assert ideal_hit_ratio(written) == ideal_hit_ratio(source)


def test_convert_writes_gzip_by_the_name_and_the_same_bytes_each_time(samples, tmp_path):
    for name in ("a.jsonl.gz", "b.jsonl.gz", "plain.jsonl"):
        assert run("convert", samples / "mooncake.jsonl", tmp_path / name).exit_code == 0
    first = (tmp_path / "a.jsonl.gz").read_bytes()
    assert gzip.decompress(first) == (tmp_path / "plain.jsonl").read_bytes()
    assert gzip.decompress((tmp_path / "b.jsonl.gz").read_bytes()) == gzip.decompress(first)
    assert first[4:8] == bytes(4), "no time"


def test_what_a_file_leaves_open_can_be_told(tmp_path):
    (tmp_path / "open.jsonl").write_text('{"input_length": 700, "hash_ids": [1, 2, 3]}\n')
    told = ("--output-tokens", 9, "--trace-block-tokens", 256)
    assert run("convert", tmp_path / "open.jsonl", tmp_path / "out.jsonl", *told, "--block-tokens", 256).exit_code == 0
    [request] = read_trace(tmp_path / "out.jsonl").requests
    assert (request.output_tokens, len(request.hash_ids)) == (9, 3)


def test_texts_become_the_tokens_of_a_model(samples, tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path / "model")
    for name, options in (("characters", ()), ("tokens", ("--tokenizer", tmp_path / "model"))):
        assert run("convert", samples / "lmcache.jsonl", tmp_path / name, *options).exit_code == 0
    characters, tokens = (read_trace(tmp_path / name).requests[0] for name in ("characters", "tokens"))
    assert tokens.input_tokens == characters.input_tokens + 1, "this tokenizer puts one at the beginning"


@pytest.mark.parametrize("name", SMALL_WORKLOADS)
def test_generate_writes_the_small_workloads(tmp_path, name):
    assert run("generate", name, tmp_path / "out.jsonl", "--seed", 3).exit_code == 0
    workload, written = small_workloads(3)[name], read_trace(tmp_path / "out.jsonl")
    assert written.block_tokens == workload.block_tokens
    assert [r.hash_ids for r in written.requests] == [r.hash_ids for r in workload.requests]


def test_generate_mix_takes_every_parameter(tmp_path):
    values = {
        "sessions": 9,
        "sessions_per_s": 2.0,
        "tenants": 3,
        "tenant_skew": 0.5,
        "agent_share": 0.9,
        "system_tokens": (100, 200),
        "turns": (2, 3),
        "typed_tokens": (1, 2),
        "typing_s": 5.0,
        "tool_tokens": (3, 4),
        "tool_s": 1.0,
        "subagents": (0, 2),
        "subagent_turns": (1, 1),
        "answer_tokens": (5, 6),
        "token_s": 0.5,
    }
    assert set(values) == set(MIX_OPTIONS) == {field.name for field in fields(Mix)}
    options = [
        each
        for name, value in values.items()
        for each in (f"--{name.replace('_', '-')}", "-".join(map(str, value)) if isinstance(value, tuple) else value)
    ]
    result = run("generate", "mix", tmp_path / "out.jsonl", "--seed", 5, *options)
    assert result.exit_code == 0, result.output
    expected = generate_mix(Mix(**values), seed=5)
    written = read_trace(tmp_path / "out.jsonl")
    assert (len(written.requests), ideal_hit_ratio(written)) == (len(expected.requests), ideal_hit_ratio(expected))
    assert [r.session for r in written.requests] == [r.session for r in expected.requests]


def test_the_defaults_are_those_of_mix(tmp_path):
    assert run("generate", "mix", tmp_path / "out.jsonl", "--sessions", 5).exit_code == 0
    expected = generate_mix(replace(Mix(), sessions=5))
    assert [r.input_tokens for r in read_trace(tmp_path / "out.jsonl").requests] == [
        r.input_tokens for r in expected.requests
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["convert", "{bad}", "{out}"], "line 2: is not JSON"),
        (["convert", "{good}", "{tmp}/none/out"], "there is no folder"),
        (["convert", "{tmp}/none", "{out}"], "does not exist"),
        (["convert", "{good}", "{out}", "--block-tokens", "0"], "0 is not in the range"),
        (["convert", "{good}", "{out}", "--tokenizer", "{tmp}"], "no tokenizer can be loaded from"),
        (["ideal", "{bad}"], "line 2: is not JSON"),
        (["ideal", "{lengths}"], "azure trace has lengths only"),
        (["generate", "many", "{out}"], "No such command 'many'"),
        (["generate", "mix", "{out}", "--turns", "3-1"], "at least 1, and the larger number last"),
        (["generate", "mix", "{out}", "--turns", "0-3"], "at least 1, and the larger number last"),
        (["generate", "mix", "{out}", "--turns", "few"], "expected LEAST-MOST, such as 20-400"),
        (["generate", "mix", "{out}", "--typing-s", "0"], "0.0 is not in the range"),
        (["generate", "mix", "{out}", "--agent-share", "2"], "2.0 is not in the range"),
    ],
)
def test_what_is_wrong_is_told_with_exit_code_2(samples, tmp_path: Path, arguments, problem):
    good = samples / "mooncake.jsonl"
    (tmp_path / "bad.jsonl").write_text(good.read_text().splitlines()[0] + "\n{\n")
    places = {"good": good, "bad": tmp_path / "bad.jsonl", "lengths": samples / "azure.csv"}
    result = run(*(each.format(tmp=tmp_path, out=tmp_path / "out", **places) for each in arguments))
    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())
    assert result.stdout == ""
