"""Bytes to messages: by tables, in any pieces, and beside two other parsers for what smuggling lives on."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.errors import ApiError
from router.http.heads import MAX_HEAD_BYTES, ProtocolError
from router.http.readers import RequestReader, ResponseReader
from tests.router.http.peers import Reading, aiohttp_requests, aiohttp_response, h11_requests, h11_response

MAX_BODY_BYTES = 1000


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges) if end > start]


def requests(chunks: list[bytes]) -> Reading:
    reader = RequestReader(MAX_BODY_BYTES)
    refused = False
    try:
        for chunk in chunks:
            reader.feed(chunk)
    except (ProtocolError, ApiError):
        refused = True
    messages = [(head.method + b" " + head.target, body) for head, body in reader.complete]
    return Reading(messages, refused or any(not head.keep_alive for head, _ in reader.complete))


def response(chunks: list[bytes], method: bytes = b"POST") -> Reading:
    reader = ResponseReader()
    reader.expect(method)
    body = b""
    try:
        for chunk in chunks:
            body += b"".join(reader.feed(chunk))
            if reader.done:
                break
        else:
            reader.end()
    except ProtocolError:
        return Reading([], ended=True)
    assert reader.head is not None
    return Reading([(b"%d" % reader.head.status, body)], ended=True)


def get(*lines: bytes, start: bytes = b"GET / HTTP/1.1", body: bytes = b"") -> bytes:
    return b"".join(line + b"\r\n" for line in (start, b"Host: a", *lines)) + b"\r\n" + body


def post(*lines: bytes, body: bytes = b"") -> bytes:
    return get(*lines, start=b"POST / HTTP/1.1", body=body)


# Requests


@pytest.mark.parametrize(
    ("data", "messages"),
    [
        (get(), [(b"GET /", b"")]),
        (get(start=b"GET /a?b=c%20d HTTP/1.1"), [(b"GET /a?b=c%20d", b"")]),
        (get(start=b"GET http://b:1/a?c HTTP/1.1"), [(b"GET /a?c", b"")]),
        (get(start=b"OPTIONS * HTTP/1.1"), [(b"OPTIONS *", b"")]),
        (post(b"Content-Length: 3", body=b"abc"), [(b"POST /", b"abc")]),
        (post(b"Content-Length: 0"), [(b"POST /", b"")]),
        (post(b"Transfer-Encoding: Chunked", body=b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\n"),
         [(b"POST /", b"abcde")]),
        (get() + post(b"Content-Length: 1", body=b"x") + get(), [(b"GET /", b""), (b"POST /", b"x"), (b"GET /", b"")]),
        (b"\r\n\r\n" + get(), [(b"GET /", b"")]),
        (b"GET / HTTP/1.0\r\n\r\n", [(b"GET /", b"")]),
        (get(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c"), [(b"GET /", b"")]),
        (get(b"Connection: close") + get(), [(b"GET /", b"")]),
        (post(b"Content-Length: 3", body=b"ab"), []),
    ],
)  # fmt: skip
def test_requests(data: bytes, messages: list[tuple[bytes, bytes]]) -> None:
    for chunks in ([data], [bytes([byte]) for byte in data]):
        assert requests(chunks).messages == messages


@pytest.mark.parametrize(
    "data",
    [
        post(b"Content-Length: 3", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked", b"Content-Length: 3", body=b"0\r\n\r\n"),
        post(b"Content-Length: 3", b"Content-Length: 3", body=b"abc"),
        post(b"Content-Length: 3, 3", body=b"abc"),
        post(b"Content-Length: +3", body=b"abc"),
        post(b"Content-Length: 0x3", body=b"abc"),
        post(b"Content-Length: 99999999999999999999", body=b"abc"),
        post(b"Content-Length : 3", body=b"abc"),
        post(b"Content-Length:", body=b""),
        post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n"),
        post(b"Transfer-Encoding: identity"),
        post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"),
        b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        post(b"Transfer-Encoding: chunked", body=b"3\r\nabcd\r\n0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked", body=b"0x3\r\nabc\r\n0\r\n\r\n"),
        post(b"Transfer-Encoding: chunked", body=b"-1\r\n\r\n"),
        post(b"Transfer-Encoding: chunked", body=b"3\nabc\n0\n\n"),
        post(b"X: a\r\n b"),
        post(b"X: a\x00b"),
        post(b"X: a\nb: c"),
        post(b"X\xe9: a"),
        get(b"Host: b"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        b"GET /\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
    ],
)
def test_what_is_refused(data: bytes) -> None:
    for chunks in ([data], [bytes([byte]) for byte in data]):
        assert requests(chunks) == Reading([], ended=True)


def test_bounds() -> None:
    fits = get(b"X: " + b"a" * (MAX_HEAD_BYTES - 100))
    assert requests([fits]).messages
    for data in (
        get(b"X: " + b"a" * MAX_HEAD_BYTES),
        get(*[b"X: a"] * MAX_HEAD_BYTES),
        b"GET /" + b"a" * MAX_HEAD_BYTES,
    ):
        assert requests([data]) == Reading([], ended=True)
        assert requests(cut(data, list(range(0, len(data), 1000)))) == Reading([], ended=True)
    assert requests([post(b"Content-Length: 1000", body=b"x" * 1000)]).messages
    for over in (
        post(b"Content-Length: 1001"),
        post(b"Transfer-Encoding: chunked", body=b"3e9\r\n" + b"x" * 1001),
    ):
        assert requests([over]) == Reading([], ended=True)


def test_what_came_before_an_error_is_kept() -> None:
    assert requests([get() + b"nonsense\r\n\r\n"]) == Reading([(b"GET /", b"")], ended=True)


@pytest.mark.parametrize(
    ("data", "expects"),
    [(post(b"Expect: 100-Continue", b"Content-Length: 3"), True), (post(b"Content-Length: 3"), False)],
)
def test_a_request_whose_body_is_coming(data: bytes, expects: bool) -> None:
    reader = RequestReader(MAX_BODY_BYTES)
    reader.feed(data)
    assert reader.coming is not None
    assert reader.coming.expects_continue is expects
    reader.feed(b"abc")
    assert reader.coming is None
    assert reader.complete[0][1] == b"abc"


# Answers

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (OK + b"Content-Length: 3\r\n\r\nabc", (b"200", b"abc")),
        (OK + b"Content-Length: 0\r\n\r\n", (b"200", b"")),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: x\r\n\r\n", (b"200", b"abc")),
        (OK + b"\r\nuntil the end", (b"200", b"until the end")),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", (b"200", b"until the end")),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", (b"200", b"x")),
        (b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", (b"200", b"x")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (b"204", b"")),
        (b"HTTP/1.1 503\r\nContent-Length: 1\r\n\r\nx", (b"503", b"x")),
        (OK + b"Content-Length: 3\r\n\r\nabcHTTP/1.1 500 More\r\n\r\n", (b"200", b"abc")),
        (OK + b"Content-Length: 3\r\n\r\nabcdef", (b"200", b"abc")),
    ],
)
def test_answers(data: bytes, expected: tuple[bytes, bytes]) -> None:
    for chunks in ([data], [bytes([byte]) for byte in data]):
        assert response(chunks).messages == [expected]


def test_an_answer_to_head_has_no_body() -> None:
    assert response([OK + b"Content-Length: 3\r\n\r\n"], b"HEAD").messages == [(b"200", b"")]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        OK,
        OK + b"Content-Length: 3\r\n\r\nab",
        OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
        OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        OK + b"X: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n",
    ],
)
def test_what_is_no_answer(data: bytes) -> None:
    for chunks in ([data], [bytes([byte]) for byte in data]):
        assert response(chunks).messages == []


@pytest.mark.parametrize(
    ("data", "reusable"),
    [
        (OK + b"Content-Length: 1\r\n\r\nx", True),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", True),
        (OK + b"Connection: Close\r\nContent-Length: 1\r\n\r\nx", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", False),
        (OK + b"Content-Length: 1\r\n\r\nx" + OK, False),
        (OK + b"Content-Length: 1\r\n\r\nxy", False),
    ],
)
def test_reuse(data: bytes, reusable: bool) -> None:
    reader = ResponseReader()
    reader.expect(b"POST")
    reader.feed(data)
    assert reader.done
    assert reader.reusable is reusable


def test_one_reader_reads_one_answer_after_the_other() -> None:
    reader = ResponseReader()
    for _ in range(3):
        reader.expect(b"POST")
        assert reader.feed(OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n") == [b"a", b"b"]
        assert reader.done


# In any pieces, and as others read it

STARTS = [b"GET / HTTP/1.1", b"POST /a HTTP/1.1", b"POST /b HTTP/1.1", b"POST /c HTTP/1.0", b"HEAD /d HTTP/1.1"]
LINES = [
    b"Content-Length: 5", b"Content-Length: 5", b"Content-Length: 0", b"content-length:5", b"Content-Length: 05",
    b"Content-Length: 5 ", b"Content-Length: 5,5", b"Content-Length: 5\x0b", b"Content-Length\t: 5",
    b"Content_Length: 5", b"Transfer-Encoding: chunked", b"transfer-encoding:\tchunked ", b"TRANSFER-ENCODING: CHUNKED",
    b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked, chunked", b"Transfer-Encoding:\x0bchunked",
    b"Transfer-Encoding : chunked", b" Transfer-Encoding: chunked", b"X: y\rTransfer-Encoding: chunked",
    b"X: y\nTransfer-Encoding: chunked", b"X: y\r\n\tz", b"X: \xff", b"X:", b"X", b"Connection: close",
    b"Connection: keep-alive", b"Connection: content-length", b"Expect: 100-continue", b"Upgrade: h2c",
]  # fmt: skip
BODIES = [
    b"", b"hello", b"hell", b"hello!", b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\nX: y\r\n\r\n",
    b"05\r\nhello\r\n0\r\n\r\n", b"5;a=b\r\nhello\r\n0\r\n\r\n", b"5 \r\nhello\r\n0\r\n\r\n", b"5\r\nhello0\r\n\r\n",
    b"5\nhello\n0\n\n", b"5\r\nhello\r\n00\r\n\r\n", b"0\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n\r\n",
    b"1_0\r\nhello\r\n0\r\n\r\n", b"5\r\nhello\r\n0\r\n", b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
]  # fmt: skip


def message(start: bytes, lines: list[bytes], body: bytes) -> bytes:
    return b"\r\n".join([start, b"Host: a", *lines, b"", body])


MESSAGES = st.builds(
    message, st.sampled_from(STARTS), st.lists(st.sampled_from(LINES), max_size=3), st.sampled_from(BODIES)
)
STREAMS = st.lists(MESSAGES, min_size=1, max_size=3).map(b"".join)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(STREAMS))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(data) - 1))
        data[place : place + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b"\r", b"\n", b"\r\n", b" ", b"\x00", b":", b"0"])
        )
    return bytes(data)


@given(mutated(), st.lists(st.integers(0, 300), max_size=10))
def test_the_pieces_do_not_matter(data: bytes, places: list[int]) -> None:
    assert requests(cut(data, places)) == requests([data])


def agree(ours: Reading, theirs: Reading) -> None:
    """Where both read a message, they read the same one; and neither goes on where the other still waits."""
    common = min(len(ours.messages), len(theirs.messages))
    assert ours.messages[:common] == theirs.messages[:common]
    assert len(ours.messages) == common or theirs.ended
    assert len(theirs.messages) == common or ours.ended


@given(mutated())
@example(post(b"Content-Length: 5", body=b"hello") + get())
def test_h11_reads_the_same_requests(data: bytes) -> None:
    agree(requests([data]), h11_requests(data))


@given(mutated())
@example(post(b"Content-Length: 5", body=b"hello") + get())
def test_aiohttp_reads_the_same_requests(data: bytes) -> None:
    agree(requests([data]), aiohttp_requests(data))


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    start = draw(
        st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 404 Not Found", b"HTTP/1.1 204 No"])
    )
    data = bytearray(message(start, draw(st.lists(st.sampled_from(LINES), max_size=3)), draw(st.sampled_from(BODIES))))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(data) - 1))
        data[place : place + draw(st.integers(0, 2))] = draw(st.sampled_from([b"", b"\r", b"\n", b" ", b"0"]))
    return bytes(data)


@given(answers(), st.lists(st.integers(0, 300), max_size=10))
def test_the_pieces_of_an_answer_do_not_matter(data: bytes, places: list[int]) -> None:
    assert response(cut(data, places)) == response([data])


@given(answers())
def test_h11_and_aiohttp_read_the_same_answer(data: bytes) -> None:
    ours = response([data]).messages
    for theirs in (h11_response(data), aiohttp_response(data)):
        if ours and theirs.messages:
            assert ours == theirs.messages
