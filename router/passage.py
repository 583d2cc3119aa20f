"""One answer on its way from a worker to the client: its bytes untouched, its first byte and its usage noted."""

from collections.abc import Callable, Sequence

import orjson

from protocol.errors import ApiError
from protocol.sse import MAX_JSON_TAIL_BYTES, MAX_STREAM_TAIL_BYTES, Usage, encode_event, last_usage
from router.http.answers import Answer, Response
from router.http.heads import HOP_BY_HOP, Header, ResponseHead, end_to_end
from router.http.upstream import Feed, Source
from router.records import Decision, Outcome

BACKPRESSURE = (429, 503)
MAX_BUSY_BYTES = 64 << 10
NOT_PASSED = HOP_BY_HOP | {b"content-length", b"x-request-id", b"x-warmroute-worker", b"x-warmroute-cached-tokens"}


class Passage:
    """What becomes of a worker's answer: to the client, or held back.

    Nothing goes to the client before the first byte of the body has come: until then another worker may still be
    asked. For the same reason backpressure (429, 503) is held back, the first MAX_BUSY_BYTES of it.
    """

    __slots__ = ("_answer", "_busy", "_decision", "_head", "_on_first_byte", "_source")

    def __init__(self, answer: Answer, decision: Decision, on_first_byte: Callable[[], None]) -> None:
        """`on_first_byte` is called once, for an answer that is no error."""
        self._answer, self._decision, self._on_first_byte = answer, decision, on_first_byte
        self._head: ResponseHead
        self._source: Source
        self._busy: bytearray | None = None

    @property
    def outcome(self) -> Outcome:
        """Of an answer that has passed."""
        if self._busy is not None:
            return Outcome.REROUTED
        return Outcome.OK if self._head.status < 400 else Outcome.REFUSED

    @property
    def busy(self) -> Response | None:
        """The worker's backpressure, if that is what it answered with."""
        if self._busy is None:
            return None
        return Response(self._head.status, end_to_end(self._head, NOT_PASSED), bytes(self._busy))

    @property
    def usage(self) -> Usage | None:
        """As the worker reported it near the end of its answer."""
        return last_usage(self._answer.tail)

    def begin(self, head: ResponseHead, source: Source) -> Feed:
        self._head, self._source = head, source
        if head.status not in BACKPRESSURE:
            return self._pass_on
        self._busy = bytearray()
        return self._hold

    def _hold(self, pieces: Sequence[bytes], last: bool) -> None:
        assert self._busy is not None
        for piece in pieces:
            self._busy += piece[: MAX_BUSY_BYTES - len(self._busy)]

    def _pass_on(self, pieces: Sequence[bytes], last: bool) -> None:
        """The first pieces; the others go to the client without us."""
        head, answer = self._head, self._answer
        if head.status < 400:
            self._on_first_byte()
        answer.pull(self._source, MAX_STREAM_TAIL_BYTES if self._is_stream else MAX_JSON_TAIL_BYTES)
        answer.begin(head.status, head.reason, self._headers(), head.length)
        self._source.deliver_to(answer.write)
        answer.write(pieces, last)

    def _headers(self) -> list[Header]:
        decision = self._decision
        return [
            *end_to_end(self._head, NOT_PASSED),
            (b"x-request-id", decision.request_id.encode()),
            (b"x-warmroute-worker", decision.slot.encode()),
            (b"x-warmroute-cached-tokens", b"%d" % decision.predicted_cached_tokens),
        ]

    @property
    def _is_stream(self) -> bool:
        return self._head.fields.get(b"content-type", b"").startswith(b"text/event-stream")

    def break_off(self, error: ApiError) -> Outcome:
        """No more comes. An answer that had begun ends here: with an error event where it is a stream, else unfinished,
        which its client can tell. Where none had, another worker may be asked."""
        if not self._answer.begun:
            return Outcome.REROUTED
        if self._is_stream and self._answer.extendable and b"content-encoding" not in self._head.fields:
            self._answer.closes = True
            event = encode_event(orjson.dumps(error.body()))
            self._answer.write([b"\n\n" + event], True)  # the worker may have sent half an event
        else:
            self._answer.abort()
        return Outcome.BROKEN
