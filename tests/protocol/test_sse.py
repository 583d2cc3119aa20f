import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.sse import DONE, EventReader, ResponsePeek, Usage, encode_event

LINES = st.lists(
    st.sampled_from([b"data: a", b"data:b", b"data", b"data:  c", b": comment", b"event: x", b"no field", b""]),
    max_size=12,
)


def read(chunks: Iterable[bytes], reader: EventReader | None = None) -> list[bytes]:
    reader = reader or EventReader()
    return [data for chunk in chunks for data in reader.feed(chunk)]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(stream)) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: one\n\ndata: two\n\n", [b"one", b"two"]),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
        (b"data: one\r\rdata: two\r\r", [b"one", b"two"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data: a\r\ndata: b\rdata: c\n\r\n", [b"a\nb\nc"]),
        (b"data:no space\n\ndata:  two spaces\n\n", [b"no space", b" two spaces"]),
        (b"data\n\n", [b""]),
        (b": ping\n\ndata: x\n\n", [b"x"]),
        (b"data: x\n: comment inside\ndata: y\n\n", [b"x\ny"]),
        (b"event: error\nid: 5\nretry: 10\ndata: x\n\n", [b"x"]),
        (b"event: no data\n\n", []),
        (b"\n\n\ndata: x\n\n\n\n", [b"x"]),
        (b"data: unfinished\n", []),
        (b"data: {\"text\": \"\x0b\x0c\xc2\x85\"}\n\n", [b"{\"text\": \"\x0b\x0c\xc2\x85\"}"]),
    ],
)  # fmt: skip
def test_reads_the_standards_forms(stream: bytes, events: list[bytes]) -> None:
    assert read([stream]) == events


@given(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 200), max_size=10))
def test_any_chunking_and_line_end_gives_the_same_events(lines: list[bytes], end: bytes, places: list[int]) -> None:
    expected = read([b"".join(line + b"\n" for line in lines)])
    assert read(cut(b"".join(line + end for line in lines), places)) == expected


CHUNKS = [b"data: a\n\n", b"data: b\n\n", b"data: ", b"c\n\n", b"data: d\rdata: e\n\n", b"data: f\r\n\n", b"\n", b": g"]


@given(st.lists(st.sampled_from(CHUNKS), max_size=8))
def test_events_that_come_a_chunk_each_are_no_different(chunks: list[bytes]) -> None:
    assert read(chunks) == read(bytes([byte]) for byte in b"".join(chunks))


def test_a_line_end_may_be_cut_in_two() -> None:
    assert read([b"data: a\r", b"\ndata: b\r\n\r", b"\ndata: c\n\n"]) == [b"a\nb", b"c"]


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_random_bytes_never_crash(chunks: list[bytes]) -> None:
    assert read(chunks) == read([b"".join(chunks)])


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\r", b"")), max_size=5))
def test_what_is_encoded_is_read_back(events: list[bytes]) -> None:
    assert read([b"".join(map(encode_event, events))]) == events


def test_done_is_openais_end_of_stream() -> None:
    assert DONE == b"data: [DONE]\n\n"


@given(st.integers(0, 40), st.integers(1, 7))
def test_an_event_over_the_bound_is_dropped_and_reading_goes_on(padding: int, chunk_size: int) -> None:
    long = b"data: " + b"x" * padding + b"\ndata: more of it\n\n"
    stream = b"data: before\n\n" + long + b"data: after\n\n"
    chunks = [stream[place : place + chunk_size] for place in range(0, len(stream), chunk_size)]
    expected = [b"before", b"x" * padding + b"\nmore of it", b"after"]
    if len(long) - 3 > 30:  # line ends are not held
        del expected[1]
    assert read(chunks, EventReader(max_event_bytes=30)) == expected


def test_the_bound_holds_for_an_event_that_comes_at_once() -> None:
    assert read([b"data: 0123456789\n\n", b"data: short\n\n"], EventReader(max_event_bytes=15)) == [b"short"]


def test_memory_stays_at_the_bound() -> None:
    reader = EventReader(max_event_bytes=1000)
    reader.feed(b"data: ")
    for _ in range(1000):
        reader.feed(b"x" * 100)
    assert len(reader._line) <= 1000
    assert reader.feed(b"\n\ndata: next\n\n") == [b"next"]


def usage(**fields: object) -> dict[str, object]:
    return {"usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11} | fields}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (usage(prompt_tokens_details={"cached_tokens": 5}), Usage(9, 2, 5)),
        (usage(prompt_tokens_details={"cached_tokens": 0}), Usage(9, 2, 0)),
        (usage(prompt_tokens_details={"cached_tokens": None}), Usage(9, 2, None)),
        (usage(prompt_tokens_details=None), Usage(9, 2, None)),
        (usage(completion_tokens=None), Usage(9, 0, None)),
        (usage(prompt_tokens="many"), None),
        ({"usage": None}, None),
        ({"usage": 7}, None),
        ({"error": {"message": "no"}}, None),
    ],
)
@pytest.mark.parametrize("chunk_size", [1, 7, 10_000])
def test_usage_of_json_and_of_a_stream(answer: dict[str, object], expected: Usage | None, chunk_size: int) -> None:
    as_json = json.dumps(answer).encode()
    streamed = encode_event(b'{"choices": [{"text": "a"}]}') + encode_event(as_json) + DONE
    for content_type, body in (("application/json", as_json), ("text/event-stream; charset=utf-8", streamed)):
        peek = ResponsePeek(content_type)
        for place in range(0, len(body), chunk_size):
            peek.feed(body[place : place + chunk_size])
        assert peek.usage == expected


def test_null_usage_in_later_chunks_does_not_undo_it() -> None:
    peek = ResponsePeek("text/event-stream")
    peek.feed(encode_event(json.dumps(usage()).encode()) + encode_event(b'{"usage": null}'))
    assert peek.usage == Usage(9, 2, None)


def test_what_a_model_says_of_usage_is_not_the_usage() -> None:
    text = json.dumps(json.dumps(usage(prompt_tokens=1)))
    answer = f'{{"choices": [{{"text": {text}}}], "usage": {{"prompt_tokens": 9, "completion_tokens": 2}}}}'.encode()
    peek = ResponsePeek("application/json")
    peek.feed(answer)
    assert peek.usage == Usage(9, 2, None)
    talk = ResponsePeek("application/json")
    talk.feed(f'{{"choices": [{{"text": {text}}}]}}'.encode())
    assert talk.usage is None


@given(st.text(max_size=60))
def test_no_text_can_pass_for_usage(text: str) -> None:
    peek = ResponsePeek("application/json")
    peek.feed(json.dumps({"choices": [{"text": f'"usage": {{"prompt_tokens": 1}} {text}'}]}).encode())
    assert peek.usage is None


def test_usage_before_other_fields_of_a_json_answer() -> None:
    peek = ResponsePeek("application/json")
    peek.feed(json.dumps(usage() | {"prompt_token_ids": list(range(50_000))}).encode())
    assert peek.usage == Usage(9, 2, None)


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
def test_memory_of_a_peek_stays_bounded_and_the_end_is_seen(content_type: str) -> None:
    peek = ResponsePeek(content_type)
    for _ in range(50):
        peek.feed(b"x" * 100_000)
        assert len(peek._tail) <= 2 << 20
    peek.feed(encode_event(json.dumps(usage()).encode()) + DONE)
    assert peek.usage == Usage(9, 2, None)


@given(st.lists(st.binary(max_size=60), max_size=6), st.sampled_from(["text/event-stream", "application/json"]))
def test_random_bodies_never_crash(chunks: list[bytes], content_type: str) -> None:
    peek = ResponsePeek(content_type)
    for chunk in chunks:
        peek.feed(chunk)
    assert peek.usage is None
