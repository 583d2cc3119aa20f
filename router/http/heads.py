"""HTTP/1.1 heads (RFC 9112): as values, the rules for them that llhttp leaves to its users, and how they are written.

No head gets through of which two readers could think differently where its message ends: request smuggling lives on
that and on nothing else.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

MAX_HEAD_BYTES = 32 << 10

Header: TypeAlias = tuple[bytes, bytes]
"""Name in lower case, value as it came."""

HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te"}
    | {b"trailer", b"transfer-encoding", b"upgrade"}
)
"""Of one connection only (RFC 9110, 7.6.1)."""

_LENGTH = re.compile(rb"[0-9]{1,18}")
_SCHEME_AND_AUTHORITY = re.compile(rb"https?://[^/?]*", re.IGNORECASE)


class ProtocolError(ValueError):
    """The peer does not speak HTTP/1.1 as it should. The message says where."""


class HeadTooLarge(ProtocolError):
    def __init__(self) -> None:
        super().__init__(f"the head of a message may have at most {MAX_HEAD_BYTES} bytes")


class RequestHead(NamedTuple):
    """A tuple because two heads are made for every request, and a frozen dataclass takes three times as long.

    `target` is the path and the query. `fields` has the headers by name. `length` is that of the body in bytes, None:
    it comes in chunks.
    """

    method: bytes
    target: bytes
    headers: Sequence[Header]
    fields: Mapping[bytes, bytes]
    length: int | None
    http_1_1: bool
    keep_alive: bool
    expects_continue: bool


class ResponseHead(NamedTuple):
    """`length` None and not `chunked`: the body ends with the connection."""

    status: int
    reason: bytes
    headers: Sequence[Header]
    fields: Mapping[bytes, bytes]
    length: int | None
    chunked: bool
    keep_alive: bool


def request_head(method: bytes, target: bytes, version: str, headers: Sequence[Header]) -> RequestHead:
    """Raises ProtocolError."""
    http_1_1, fields = _is_1_1(version), _fields(headers)
    length, chunked = _length(fields, http_1_1)
    keep_alive, expects_continue = http_1_1, False
    if b"connection" in fields:
        keep_alive = http_1_1 and _members(fields, b"connection").isdisjoint((b"close", b"upgrade"))
    if b"expect" in fields:
        expects_continue = http_1_1 and b"100-continue" in _members(fields, b"expect")
    if method == b"CONNECT":
        raise ProtocolError("CONNECT is for proxies of another kind")
    if b"," in fields.get(b"host", b"," if http_1_1 else b""):
        raise ProtocolError("a request needs one host header")
    if not target.startswith(b"/"):  # RFC 9112, 3.2.2: every server must take the form that proxies get
        target = _SCHEME_AND_AUTHORITY.sub(b"", target, count=1)
    length = None if chunked else length or 0
    return RequestHead(method, target, headers, fields, length, http_1_1, keep_alive, expects_continue)


def response_head(status: int, reason: bytes, version: str, headers: Sequence[Header]) -> ResponseHead:
    """Raises ProtocolError."""
    http_1_1, fields = _is_1_1(version), _fields(headers)
    length, chunked = _length(fields, http_1_1)
    keep_alive = http_1_1 and (b"connection" not in fields or b"close" not in _members(fields, b"connection"))
    return ResponseHead(status, reason, headers, fields, length, chunked, keep_alive)


def _fields(headers: Sequence[Header]) -> dict[bytes, bytes]:
    """By name; what came on several lines as the list that it is (RFC 9110, 5.3)."""
    fields = dict(headers)
    if len(fields) == len(headers):
        return fields
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    return {name: b", ".join(each) for name, each in values.items()}


def _is_1_1(version: str) -> bool:
    if version not in ("1.1", "1.0"):
        raise ProtocolError("only HTTP/1.1 and HTTP/1.0 are spoken here")
    return version == "1.1"


def _length(fields: Mapping[bytes, bytes], http_1_1: bool) -> tuple[int | None, bool]:
    """(content length if there is one, chunked). Raises ProtocolError for what is both, or neither quite."""
    length, coding = fields.get(b"content-length"), fields.get(b"transfer-encoding")
    if coding is not None:
        if length is not None or not http_1_1 or coding.strip(b" \t").lower() != b"chunked":
            raise ProtocolError("transfer-encoding may be 'chunked' once, in HTTP/1.1, without content-length")
        return None, True
    if length is None:
        return None, False
    if not _LENGTH.fullmatch(length.strip(b" \t")):
        raise ProtocolError("content-length must be one whole number")
    return int(length), False


def _members(fields: Mapping[bytes, bytes], name: bytes) -> frozenset[bytes]:
    """Of a list header that is there."""
    return frozenset(member.strip().lower() for member in fields[name].split(b","))


def bodiless(method: bytes, status: int) -> bool:
    """Whether an answer ends with its head, whatever that says of a body (RFC 9112, 6.3)."""
    return method == b"HEAD" or status in (204, 304)


def end_to_end(head: RequestHead | ResponseHead, dropped: frozenset[bytes]) -> list[Header]:
    """The headers without `dropped` and without those that `connection` names. HOP_BY_HOP should be in `dropped`."""
    if b"connection" in head.fields:
        dropped |= _members(head.fields, b"connection")
    return [header for header in head.headers if header[0] not in dropped]


def encode_head(start_line: bytes, headers: Iterable[Header]) -> bytes:
    return b"\r\n".join([start_line, *[b"%b: %b" % header for header in headers], b"\r\n"])
