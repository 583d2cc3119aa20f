"""One answer on its way from a worker to the client: its bytes untouched, its first byte and its usage noted."""

from collections.abc import Callable, Sequence

import orjson

from protocol.errors import ApiError
from protocol.sse import ResponsePeek, Usage, encode_event
from router.http.answers import Answer, Response, Source
from router.http.heads import HOP_BY_HOP, Header, ResponseHead, end_to_end
from router.records import Decision

BACKPRESSURE = (429, 503)
MAX_BUSY_BYTES = 64 << 10
NOT_PASSED = HOP_BY_HOP | {b"content-length", b"x-request-id", b"x-warmroute-worker", b"x-warmroute-cached-tokens"}


class Passage:
    """A Sink for the worker's answer.

    Nothing goes to the client before the first byte of the body has come: until then another worker may still be
    asked. For the same reason backpressure (429, 503) is held back, the first MAX_BUSY_BYTES of it.
    """

    __slots__ = ("_answer", "_busy", "_decision", "_head", "_on_first_byte", "_peek", "_source")

    def __init__(self, answer: Answer, decision: Decision, on_first_byte: Callable[[], None]) -> None:
        """`on_first_byte` is called once, for an answer that is no error."""
        self._answer, self._decision, self._on_first_byte = answer, decision, on_first_byte
        self._head: ResponseHead
        self._source: Source
        self._peek: ResponsePeek
        self._busy: bytearray | None = None

    @property
    def begun(self) -> bool:
        """Whether the client has seen any of it."""
        return self._answer.begun

    @property
    def status(self) -> int:
        return self._head.status

    @property
    def busy(self) -> Response | None:
        """The worker's backpressure, if that is what it answered with."""
        return None if self._busy is None else Response(self.status, self._headers(), bytes(self._busy))

    @property
    def usage(self) -> Usage | None:
        return self._peek.usage

    def begin(self, head: ResponseHead, source: Source) -> None:
        self._head, self._source = head, source
        self._peek = ResponsePeek(head.fields.get(b"content-type", b"").decode("latin-1"))
        if head.status in BACKPRESSURE:
            self._busy = bytearray()

    def feed(self, pieces: Sequence[bytes], last: bool) -> None:
        if self._busy is None:
            self._pass_on(pieces, last)
        else:
            for piece in pieces:
                self._busy += piece[: MAX_BUSY_BYTES - len(self._busy)]

    def _pass_on(self, pieces: Sequence[bytes], last: bool) -> None:
        if not self._answer.begun:
            self._begin_answer()
        self._answer.write(pieces, last=last)
        for piece in pieces:
            self._peek.feed(piece)

    def _begin_answer(self) -> None:
        if self.status < 400:
            self._on_first_byte()
        self._answer.pull(self._source)
        decision = self._decision
        headers = [
            *self._headers(),
            (b"x-request-id", decision.request_id.encode()),
            (b"x-warmroute-worker", decision.slot.encode()),
            (b"x-warmroute-cached-tokens", b"%d" % decision.predicted_cached_tokens),
        ]
        self._answer.begin(self.status, self._head.reason, headers, self._head.length)

    def _headers(self) -> list[Header]:
        return end_to_end(self._head, NOT_PASSED)

    def break_off(self, error: ApiError) -> None:
        """The answer that began ends here: with an error event where it is a stream, else unfinished, which its client
        can tell."""
        fields = self._head.fields
        stream = fields.get(b"content-type", b"").startswith(b"text/event-stream")
        if not stream or not self._answer.extendable or b"content-encoding" in fields:
            self._answer.abort()
            return
        self._answer.closes = True
        event = encode_event(orjson.dumps(error.body()))
        self._answer.write([b"\n\n" + event], last=True)  # the worker may have sent half an event
