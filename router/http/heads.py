"""HTTP/1.1 heads (RFC 9112): as values, the rules for them that llhttp leaves to its users, and how they are written.

No head gets through of which two readers could think differently where its message ends: request smuggling lives on
that and on nothing else.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

MAX_HEAD_BYTES = 32 << 10

Header: TypeAlias = tuple[bytes, bytes]
"""Name in lower case, value as it came."""

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te"}
    | {b"trailer", b"transfer-encoding", b"upgrade"}
)
"""Of one connection only (RFC 9110, 7.6.1)."""

_FRAMING = frozenset({b"host", b"content-length", b"transfer-encoding", b"connection", b"expect"})
_LENGTH = re.compile(rb"[0-9]{1,18}")
_SCHEME_AND_AUTHORITY = re.compile(rb"https?://[^/?]*", re.IGNORECASE)

_Framing: TypeAlias = dict[bytes, list[bytes]]
"""Every value of the headers that say where a message ends or what becomes of its connection."""


class ProtocolError(ValueError):
    """The peer does not speak HTTP/1.1 as it should. The message says where."""


class HeadTooLarge(ProtocolError):
    def __init__(self) -> None:
        super().__init__(f"the head of a message may have at most {MAX_HEAD_BYTES} bytes")


class RequestHead(NamedTuple):
    """A tuple because two heads are made for every request, and a frozen dataclass takes three times as long.

    `target` is the path and the query. `length` is that of the body in bytes, None: it comes in chunks.
    """

    method: bytes
    target: bytes
    headers: Sequence[Header]
    length: int | None
    http_1_1: bool
    keep_alive: bool
    expects_continue: bool


class ResponseHead(NamedTuple):
    """`length` None and not `chunked`: the body ends with the connection."""

    status: int
    reason: bytes
    headers: Sequence[Header]
    length: int | None
    chunked: bool
    keep_alive: bool


def request_head(method: bytes, target: bytes, version: str, headers: Sequence[Header]) -> RequestHead:
    """Raises ProtocolError."""
    http_1_1, framing = _is_1_1(version), _framing(headers)
    length, chunked = _length(framing, http_1_1)
    if method == b"CONNECT":
        raise ProtocolError("CONNECT is for proxies of another kind")
    hosts = len(framing.get(b"host", ()))
    if hosts > 1 or (http_1_1 and not hosts):
        raise ProtocolError("a request needs one host header")
    if not target.startswith(b"/"):  # RFC 9112, 3.2.2: every server must take the form that proxies get
        target = _SCHEME_AND_AUTHORITY.sub(b"", target, count=1)
    return RequestHead(
        method,
        target,
        headers,
        length=None if chunked else length or 0,
        http_1_1=http_1_1,
        keep_alive=http_1_1 and not _has(framing, b"connection", b"close", b"upgrade"),
        expects_continue=http_1_1 and _has(framing, b"expect", b"100-continue"),
    )


def response_head(status: int, reason: bytes, version: str, headers: Sequence[Header]) -> ResponseHead:
    """Raises ProtocolError."""
    http_1_1, framing = _is_1_1(version), _framing(headers)
    length, chunked = _length(framing, http_1_1)
    keep_alive = http_1_1 and not _has(framing, b"connection", b"close")
    return ResponseHead(status, reason, headers, length, chunked, keep_alive)


def _framing(headers: Iterable[Header]) -> _Framing:
    found: _Framing = {}
    for name, value in headers:
        if name in _FRAMING:
            found.setdefault(name, []).append(value.strip(b" \t"))
    return found


def _is_1_1(version: str) -> bool:
    if version not in ("1.1", "1.0"):
        raise ProtocolError("only HTTP/1.1 and HTTP/1.0 are spoken here")
    return version == "1.1"


def _length(framing: _Framing, http_1_1: bool) -> tuple[int | None, bool]:
    """(content length if there is one, chunked). Raises ProtocolError for what is both, or neither quite."""
    lengths, codings = framing.get(b"content-length"), framing.get(b"transfer-encoding")
    if codings:
        if lengths or not http_1_1 or [coding.lower() for coding in codings] != [b"chunked"]:
            raise ProtocolError("transfer-encoding may be 'chunked' once, in HTTP/1.1, without content-length")
        return None, True
    if lengths and (len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0])):
        raise ProtocolError("content-length must be one whole number")
    return int(lengths[0]) if lengths else None, False


def _has(framing: _Framing, name: bytes, *members: bytes) -> bool:
    """Whether a list header has any of these, over all its lines."""
    if name not in framing:
        return False
    return not {member.strip().lower() for value in framing[name] for member in value.split(b",")}.isdisjoint(members)


def header(headers: Iterable[Header], name: bytes) -> bytes | None:
    """The first value under a lower-case name."""
    for each, value in headers:
        if each == name:
            return value
    return None


def bodiless(method: bytes, status: int) -> bool:
    """Whether an answer ends with its head, whatever that says of a body (RFC 9112, 6.3)."""
    return method == b"HEAD" or status in (204, 304)


def end_to_end(headers: Iterable[Header], dropped: frozenset[bytes]) -> list[Header]:
    """Without `dropped` and without those that `connection` names. HOP_BY_HOP should be among `dropped`."""
    for name, value in headers:
        if name == b"connection":
            dropped |= {member.strip().lower() for member in value.split(b",")}
    return [header for header in headers if header[0] not in dropped]


def encode_head(start_line: bytes, headers: Iterable[Header]) -> bytes:
    return b"\r\n".join([start_line, *[b"%b: %b" % header for header in headers], b"\r\n"])
