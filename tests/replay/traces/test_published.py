"""Published traces, where they lie beside the checkout: read whole, and their ideal hit ratios."""

import gzip

import orjson
import pytest

from replay.traces.blocks import rechunked
from replay.traces.ideal import ideal_hit_ratio
from replay.traces.reader import read_trace

CACHES = (1, 2, 4, 8, 16)


@pytest.mark.parametrize(
    ("name", "rows", "span_s", "mean_tokens", "ratios"),
    [
        ("mooncake_conversation_full.jsonl.gz", 12031, 3537, (12035, 343), (0.374, 0.276, 0.196, 0.139, 0.101)),
        ("mooncake_conversation_0-600s.jsonl", 1750, 597, (13992, 354), (0.289, 0.188, 0.123, 0.082, 0.056)),
        ("mooncake_arxiv_first1000.jsonl", 1000, 177, (9792, 199), (0.391, 0.347, 0.317, 0.300, 0.284)),
        ("agentic_kvt_v6_global_512.jsonl.gz", 6851, 3599, (83031, 425), (0.954, 0.916, 0.852, 0.755, 0.624)),
        ("lmcache_miniswe_text.jsonl.gz", 402, 552, (24065, 455), (0.936, 0.876, 0.761, 0.555, 0.257)),
    ],
)
def test_ideal_hit_ratios(published, name, rows, span_s, mean_tokens, ratios):
    trace = read_trace(published / name)
    assert (len(trace.requests), round(trace.span_s)) == (rows, span_s)
    assert (round(trace.input_tokens / rows), round(trace.output_tokens / rows)) == mean_tokens
    if trace.format == "lmcache":  # measured in blocks of 64 characters
        trace = rechunked(trace, 64)
    assert [ideal_hit_ratio(trace, caches) for caches in CACHES] == pytest.approx(ratios, abs=0.001)


@pytest.mark.parametrize(
    ("name", "format", "rows", "has_prefixes"),
    [
        ("AzureLLMInferenceTrace_code.csv.gz", "azure", 8819, False),
        ("AzureLLMInferenceTrace_conv.csv.gz", "azure", 19366, False),
        ("dynamo_pi_request_trace.jsonl.gz", "dynamo-recorder", 17, True),
        ("lmcache_taubench_text.jsonl.gz", "lmcache", 471, True),
        ("weka_raw", "weka", 295, True),
    ],
)
def test_the_others_are_read_whole(published, name, format, rows, has_prefixes):
    trace = read_trace(published / name)
    assert (trace.format, len(trace.requests), trace.has_prefixes) == (format, rows, has_prefixes)


def test_what_a_real_engine_had_cached_lies_between_prompts_alone_and_prompts_with_answers(published):
    """Dynamo's recorder wrote down what its engines reported; they keep answers too, which the ideal does not know."""
    path = published / "dynamo_pi_request_trace.jsonl.gz"
    with gzip.open(path) as lines:
        events = [orjson.loads(line)["event"] for line in lines]
    cached_tokens = sum(event["request"]["cached_tokens"] for event in events if "request" in event)
    trace = read_trace(path)
    ideal_tokens = ideal_hit_ratio(trace) * trace.input_tokens
    assert ideal_tokens < cached_tokens < ideal_tokens + trace.output_tokens
