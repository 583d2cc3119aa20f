"""Each format's sample, read: what is known of each request, and what its prompts share."""

import gzip
from pathlib import Path

import numpy as np
import orjson
import pytest

from policies.views import Candidates
from protocol.sse import Usage
from replay.traces.reader import read_trace
from replay.traces.text import ModelTokens
from replay.traces.trace import Chat, Trace
from router.json_answers import decision_json
from router.records import Decision, Finish, Outcome


def facts(trace: Trace) -> list[tuple]:
    """(input, output, names of blocks, arrival, session, turn, delay) of each request."""
    return [
        (r.input_tokens, r.output_tokens, r.hash_ids, r.arrival_s, r.session, r.turn, r.delay_s) for r in trace.requests
    ]


def header(trace: Trace) -> tuple:
    return trace.format, trace.block_tokens, trace.has_prefixes


def test_mooncake(samples):
    trace = read_trace(samples / "mooncake.jsonl")
    assert header(trace) == ("mooncake", 512, True)
    assert facts(trace) == [
        (1100, 52, (0, 1, 2), 0.0, None, 0, None),
        (1024, 3, (0, 1), 0.5, None, 0, None),
        (600, 10, (0, 3), 3.0, None, 0, None),
    ]
    assert (trace.span_s, trace.input_tokens, trace.output_tokens) == (3.0, 2724, 65)


def test_mooncake_with_sessions_and_dynamos_aliases(samples):
    trace = read_trace(samples / "mooncake_sessions.jsonl")
    assert facts(trace) == [
        (600, 40, (0, 1), 0.01, "a", 0, None),
        (1024, 3, (0, 2), None, "a", 1, 2.5),
        (512, 1, (3,), 0.0, "b", 0, None),
    ]


def test_the_size_of_mooncakes_blocks_can_be_told(samples):
    trace = read_trace(samples / "mooncake.jsonl", block_tokens=400)
    assert (trace.block_tokens, [r.hash_ids for r in trace.requests]) == (400, [(0, 1, 2), (0, 1, 3), (0, 4)])


def test_aiperf_texts_chats_and_bodies(samples):
    trace = read_trace(samples / "aiperf.jsonl")
    assert header(trace) == ("mooncake", 16, True)
    text, chat, body, completion = trace.requests
    assert (text.prompt, text.input_tokens, text.output_tokens) == ("Tell me about whales.", 21, 20)
    tools = ({"type": "function", "function": {"name": "look"}},)
    assert chat.prompt == Chat(({"role": "user", "content": "Hi"},), tools)
    assert (chat.session, chat.turn, chat.arrival_s, chat.delay_s) == ("s", 1, None, 0.25)
    assert (body.prompt, body.output_tokens) == (Chat(({"role": "user", "content": "Hi"},)), 7)
    assert (completion.prompt, completion.output_tokens) == ("Tell me about whale song.", 8)
    assert text.hash_ids[0] == completion.hash_ids[0]
    assert text.hash_ids[1] != completion.hash_ids[1]


def test_dynamos_recorder(samples):
    """In order of arrival, although its lines are in order of end; delays follow from the end of the turn before."""
    trace = read_trace(samples / "dynamo_recorder.jsonl")
    assert header(trace) == ("dynamo-recorder", 16, True)
    assert facts(trace) == [
        (20, 30, (0, 3), 0.0, "root", 0, None),
        (40, 9, (0, 1, 2), 2.0, "root:scout", 0, None),
        (33, 4, (0, 1, 4), 4.25, "root", 1, 0.75),
    ]


def test_bailian_hashes_are_told_apart_by_what_comes_before(samples):
    trace = read_trace(samples / "bailian.jsonl")
    assert header(trace) == ("bailian", 16, True)
    assert facts(trace) == [
        (40, 132, (0, 1, 2), 0.0, "159", 0, None),
        (32, 7, (3, 4), 0.386, "160", 0, None),  # its second block has the content, not the prefix, of 1
        (64, 80, (0, 1, 5, 6), 1.386, "159", 1, None),
        (64, 9, (0, 1, 7, 8), 1.886, "159", 2, None),  # hashes for half of it: the rest is like nothing else
    ]


def test_weka_with_a_subagent(samples):
    trace = read_trace(samples / "weka_v8.json")
    assert header(trace) == ("weka", 64, True)
    assert facts(trace) == [
        (150, 17, (0, 1, 2), 0.0, "trace_0277", 0, None),
        (70, 5, (3, 4), 4.0, "trace_0277/agent_001", 0, None),
        (130, 6, (3, 5, 6), 6.5, "trace_0277/agent_001", 1, 1.5),
        (192, 40, (0, 1, 7), 12.0, "trace_0277", 1, 9.0),
    ]


def test_weka_subagents_on_the_sessions_clock(samples, tmp_path):
    session = orjson.loads((samples / "weka_v8.json").read_bytes())
    for request in session["requests"][1]["requests"]:
        request["t"] += 4.0
    (tmp_path / "s.json").write_bytes(orjson.dumps(session))
    assert read_trace(tmp_path / "s.json") == read_trace(samples / "weka_v8.json")


@pytest.mark.parametrize(("scope", "shared"), [("global", True), ("local", False)])
def test_a_directory_of_weka_sessions_shares_hashes_if_they_are_global(samples, tmp_path, scope, shared):
    session = orjson.loads((samples / "weka_v8.json").read_bytes()) | {"hash_id_scope": scope}
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_bytes(orjson.dumps(session | {"id": name}))
    (tmp_path / "README.md").write_text("not a trace")
    first, second = (r for r in read_trace(tmp_path).requests if r.input_tokens == 150)
    assert (first.session, second.session) == ("one", "two")
    assert (first.hash_ids[:2] == second.hash_ids[:2]) is shared


def test_lmcache(samples):
    trace = read_trace(samples / "lmcache.jsonl")
    assert header(trace) == ("lmcache", 16, True)
    assert facts(trace) == [
        (41, 2, (0, 1, 2), 0.0, "24c8", 0, None),
        (54, 0, (0, 1, 3, 4), 1.5, "24c8", 1, None),
    ]


def test_sharegpt_has_a_request_for_each_answer(samples):
    trace = read_trace(samples / "sharegpt.json")
    assert header(trace) == ("sharegpt", 16, True)
    assert [(r.session, r.turn, r.output_tokens, len(r.prompt.messages)) for r in trace.requests] == [
        ("x_0", 0, len("A beginning."), 1),
        ("x_0", 1, len("An end."), 3),
        (f"{samples / 'sharegpt.json'}, item 3", 0, len("Hi"), 2),
    ]
    assert trace.requests[2].prompt.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    )
    first, second, _ = trace.requests
    assert first.hash_ids[:-1] == second.hash_ids[: len(first.hash_ids) - 1]


def test_aibrix(samples):
    trace = read_trace(samples / "aibrix.jsonl")
    assert header(trace) == ("aibrix", 16, True)
    assert [(r.prompt, r.output_tokens, r.arrival_s, r.session, r.turn) for r in trace.requests] == [
        ("I need to understand data science", 100, 0.0, "0", 0),
        ("I need to understand cooking", 50, 0.0, "1", 0),
        ("I need to understand data science, and more", 30, 19.0, "0", 1),
    ]


def test_aibrix_with_lengths_only(samples):
    trace = read_trace(samples / "aibrix_lengths.jsonl")
    assert header(trace) == ("aibrix", 512, False)
    assert [r[:4] for r in facts(trace)] == [(600, 40, (0, 1), 0.0), (30, 4, (2,), 0.5)]


def test_opentelemetry_spans(samples):
    trace = read_trace(samples / "otel.json")
    assert header(trace) == ("otel", 16, True)
    first, second = trace.requests
    assert first.prompt == Chat(({"role": "user", "content": "Capital of France?"},))
    assert (first.output_tokens, first.arrival_s) == (len("Paris."), 0.0)
    assert [message["content"] for message in second.prompt.messages] == ["Capital of France?", "Paris.", "Sure?"]
    assert (second.output_tokens, second.arrival_s, second.session, second.turn) == (2, 3.25, "chain_001", 1)
    assert second.delay_s == 0.75  # after the end of the first span


def test_tracelab_shares_what_the_provider_had_cached(samples):
    trace = read_trace(samples / "tracelab.jsonl")
    assert header(trace) == ("tracelab", 512, True)
    assert facts(trace) == [
        (1500, 40, (0, 1, 2), 0.0, "claude:1", 0, None),
        (2100, 90, (0, 1, 3, 4, 5), 6.0, "claude:1", 1, 1.5),
        (2200, 10, (6, 7, 8, 9, 10), 3600.0, "claude:1", 2, 3591.0),
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("azure", [(4808, 10, tuple(range(10)), 0.0), (3180, 8, tuple(range(10, 17)), 0.052)]),
        ("burstgpt", [(472, 18, (0,), 0.0), (1087, 230, (1, 2, 3), 113.5)]),
    ],
)
def test_tables_have_lengths_only(samples, name, expected):
    trace = read_trace(samples / f"{name}.csv")
    assert header(trace) == (name, 512, False)
    assert [r[:4] for r in facts(trace)] == expected


def test_burstgpts_sessions_are_kept(samples):
    assert [r.session for r in read_trace(samples / "burstgpt.csv").requests] == ["conv_1", None]


def decisions() -> list[dict]:
    """As GET /decisions answers at second 10: newest first; one runs, one was refused, two were answered."""
    none = np.empty(0)
    candidates = Candidates((), *[none] * (len(Candidates._fields) - 1))
    decision = Decision("r1", 1.0, "m", "expected_work", 90, candidates, (), none, "w-1", 0)
    answered = Finish(Outcome.OK, 3.5, 0.2, Usage(prompt_tokens=100, completion_tokens=7, cached_tokens=64))
    return [
        decision_json(decision._replace(request_id="r4", at_s=9.0), None, 10.0),
        decision_json(decision._replace(request_id="r3", at_s=8.0), Finish(Outcome.REFUSED, 8.1, None, None), 10.0),
        decision_json(decision._replace(request_id="r2", at_s=4.25), answered, 10.0),
        decision_json(decision, answered, 10.0),
    ]


@pytest.mark.parametrize("form", ["answer", "lines"])
def test_our_own_decision_log_has_lengths_only(tmp_path, form):
    log = tmp_path / "decisions"
    if form == "answer":
        log.write_bytes(orjson.dumps({"decisions": decisions()}))
    else:
        log.write_bytes(b"\n".join(map(orjson.dumps, decisions())))
    trace = read_trace(log)
    assert header(trace) == ("decisions", 512, False)
    assert [r[:4] for r in facts(trace)] == [(100, 7, (1,), 0.0), (100, 7, (0,), 3.25)]


@pytest.mark.parametrize("name", ["mooncake.jsonl", "weka_v8.json", "azure.csv", "sharegpt.json"])
def test_gzip_and_names_do_not_matter(samples, tmp_path, name):
    plain, zipped = tmp_path / "plain", tmp_path / "zipped.txt"
    plain.write_bytes((samples / name).read_bytes())
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    trace = read_trace(samples / name)
    assert [facts(read_trace(path))[0][:4] for path in (plain, zipped)] == [facts(trace)[0][:4]] * 2


def test_answers_of_unknown_length_take_the_default(tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"text_input": "Hello"}\n{"text_input": "Hello", "output_length": 3}\n')
    assert [r.output_tokens for r in read_trace(trace, output_tokens=64).requests] == [64, 3]


def test_texts_by_a_models_tokenizer(samples, tmp_path, encoder):
    """The fixture's tokenizer has a token for each byte and for each special token."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"text_input": "schön", "output_length": 1}\n', encoding="utf-8")
    assert read_trace(path).requests[0].input_tokens == len("schön")
    assert read_trace(path, text=ModelTokens(encoder)).requests[0].input_tokens == len("^schoen")
    chat = read_trace(samples / "sharegpt.json", text=ModelTokens(encoder)).requests[0]
    assert chat.input_tokens == len("^user\nWhat is a prefix?$\n^assistant\n")
    assert chat.output_tokens == len("A beginning.")


def test_a_missing_file_is_an_os_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "no.jsonl")
