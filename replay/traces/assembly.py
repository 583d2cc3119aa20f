"""From a file's rows to a trace: names for blocks, lengths of texts, turns of sessions, times from a common zero."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from protocol.errors import ApiError
from replay.traces.blocks import BlockNames
from replay.traces.errors import FormatError
from replay.traces.row import Row
from replay.traces.text import TextTokens
from replay.traces.trace import Chat, Prompt, Trace, TraceRequest

CLOCK_DIGITS = 6
"""Microseconds: times since 1970 have no more in a float."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What rows may leave open. `output_tokens` None: a row must say how long its answer is."""

    text: TextTokens
    hash_block_tokens: int
    text_block_tokens: int
    output_tokens: int | None


def assemble(name: str, rows: Iterable[Row], defaults: Defaults) -> Trace | None:
    """None where there are no rows. Raises FormatError for a row that cannot be a request."""
    assembler = _Assembler(defaults)
    drafts = [assembler.draft(row) for row in rows]
    if not drafts:
        return None
    return Trace(name, tuple(_timed(drafts)), assembler.block_tokens, assembler.has_prefixes)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A request whose times are still the file's."""

    request: TraceRequest
    duration_s: float | None


class _Assembler:
    """Turns rows into drafts, in the order of the file."""

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._names = BlockNames()
        self._previous: dict[str | None, TraceRequest] = {}  # by session, for rows that continue theirs
        self.block_tokens = 0  # the first row's
        self.has_prefixes = False

    def draft(self, row: Row) -> _Draft:
        self._check_block_size(row)
        tokens = None if row.prompt is None else self._tokens(row, row.prompt)
        input_tokens = row.input_tokens if tokens is None else len(tokens)
        if not input_tokens:
            raise FormatError(row.place, "has an empty prompt; expected at least one token")
        request = TraceRequest(
            input_tokens=input_tokens,
            output_tokens=self._output_tokens(row),
            hash_ids=self._hash_ids(row, tokens, input_tokens),
            prompt=row.prompt,
            arrival_s=row.arrival_s,
            session=row.session,
            delay_s=row.delay_s,
        )
        if row.shared_tokens is not None:
            self._previous[row.session] = request
        return _Draft(request, row.duration_s)

    def _check_block_size(self, row: Row) -> None:
        if self.block_tokens == 0:
            usual = self._defaults.hash_block_tokens if row.prompt is None else self._defaults.text_block_tokens
            self.block_tokens = row.block_tokens or usual
        elif row.block_tokens not in (None, self.block_tokens):
            problem = f"has blocks of {row.block_tokens} tokens; expected {self.block_tokens}, as in the rows before"
            raise FormatError(row.place, problem)

    def _tokens(self, row: Row, prompt: Prompt) -> Sequence[int]:
        if not isinstance(prompt, str | Chat):
            return prompt
        try:
            return self._defaults.text.prompt(prompt)
        except (ApiError, ValueError) as error:
            raise FormatError(row.place, f"has a prompt without tokens: {error}") from error

    def _output_tokens(self, row: Row) -> int:
        if row.output_tokens is not None:
            return row.output_tokens
        if row.answer is not None:
            return self._defaults.text.answer(row.answer)
        if self._defaults.output_tokens is None:
            raise FormatError(row.place, "does not say how long the answer is; expected that, or a default for all")
        return self._defaults.output_tokens

    def _hash_ids(self, row: Row, tokens: Sequence[int] | None, input_tokens: int) -> tuple[int, ...]:
        blocks = ceil(input_tokens / self.block_tokens)
        known = self._known_names(row, tokens)
        if known is None:
            return tuple(self._names.fresh(blocks))
        self.has_prefixes = True
        if len(known) > blocks:
            raise FormatError(
                row.place,
                f"has {len(known)} hashes for {input_tokens} tokens; expected at most {blocks}, one for each "
                f"{self.block_tokens} tokens",
            )
        return (*known, *self._names.fresh(blocks - len(known)))

    def _known_names(self, row: Row, tokens: Sequence[int] | None) -> Sequence[int] | None:
        """Of as many blocks as the row tells of; None if it tells nothing of what its prompt shares."""
        if tokens is not None:
            return self._names.chained(_contents(tokens, self.block_tokens), row.scope)
        if row.hashes is not None:
            return self._names.chained(row.hashes, row.scope)
        return None if row.shared_tokens is None else self._continued(row.session, row.shared_tokens)

    def _continued(self, session: str | None, shared_tokens: int) -> Sequence[int]:
        previous = self._previous.get(session)
        if previous is None:
            return ()
        return previous.hash_ids[: min(shared_tokens, previous.input_tokens) // self.block_tokens]


def _contents(tokens: Sequence[int], block_tokens: int) -> list[bytes]:
    data = array("I", tokens).tobytes()
    stride = 4 * block_tokens
    return [data[start : start + stride] for start in range(0, len(data), stride)]


def _timed(drafts: list[_Draft]) -> Iterator[TraceRequest]:
    """In order of arrival, where all have one, with turns and delays, and with arrivals from zero."""
    arrivals = [draft.request.arrival_s for draft in drafts]
    zero_s = min((arrival for arrival in arrivals if arrival is not None), default=0.0)
    if None not in arrivals:
        drafts = sorted(drafts, key=lambda draft: draft.request.arrival_s or 0.0)
    sessions: dict[str, _Session] = {}
    for draft in drafts:
        session = draft.request.session
        sequence = _Session() if session is None else sessions.setdefault(session, _Session())
        yield sequence.next_turn(draft, zero_s)


@dataclass(slots=True)
class _Session:
    turns: int = 0
    answered_s: float | None = None  # the end of the last answer, where the file has it

    def next_turn(self, draft: _Draft, zero_s: float) -> TraceRequest:
        request, turn = draft.request, self.turns
        arrival_s, delay_s = request.arrival_s, request.delay_s
        if delay_s is None and arrival_s is not None and self.answered_s is not None:
            delay_s = max(0.0, round(arrival_s - self.answered_s, CLOCK_DIGITS))
        self.turns += 1
        self.answered_s = None if arrival_s is None or draft.duration_s is None else arrival_s + draft.duration_s
        return replace(
            request,
            arrival_s=None if arrival_s is None else round(arrival_s - zero_s, CLOCK_DIGITS),
            turn=turn,
            delay_s=delay_s if turn else None,
        )
