import asyncio

import pytest

from protocol.sse import DONE, MAX_JSON_TAIL_BYTES, MAX_STREAM_TAIL_BYTES, Usage, encode_event, last_usage
from router.http.answers import Answer
from router.http.heads import RequestHead
from tests.router.http.transport import FakeTransport

END = encode_event(b'{"usage": {"prompt_tokens": 9, "completion_tokens": 2}}') + DONE
USAGE = Usage(9, 2, None)


@pytest.fixture
def answer() -> Answer:
    head = RequestHead(b"POST", b"/", (), {}, length=0, http_1_1=True, keep_alive=True, expects_continue=False)
    transport = FakeTransport(asyncio.Protocol())
    answer = Answer(transport, head, paused=False)
    answer.begin(200, b"OK", [], None)
    return answer


@pytest.mark.parametrize("piece_bytes", [1, 7, 10_000])
def test_usage_is_seen_in_any_pieces(answer: Answer, piece_bytes: int) -> None:
    answer.pull(asyncio.Transport(), MAX_STREAM_TAIL_BYTES)
    for place in range(0, len(END), piece_bytes):
        answer.write([END[place : place + piece_bytes]], False)
    assert last_usage(answer.tail) == USAGE


@pytest.mark.parametrize("max_tail_bytes", [MAX_STREAM_TAIL_BYTES, MAX_JSON_TAIL_BYTES])
def test_memory_of_an_answer_stays_bounded_and_its_end_is_seen(answer: Answer, max_tail_bytes: int) -> None:
    answer.pull(asyncio.Transport(), max_tail_bytes)
    for _ in range(50):
        answer.write([b"x" * 100_000], False)
        assert len(answer.tail) <= 2 * max_tail_bytes
    answer.write([END], True)
    assert last_usage(answer.tail) == USAGE
