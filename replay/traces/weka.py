"""kv-cache-tester's (Weka's) coding sessions: a JSON document each, v6 with hashes for all sessions, v8 with its own.

A session's clock starts at 0, so all sessions of a directory start together. A subagent is a session of its own, which
starts at its own time; that its parent waits for its end is not kept.
"""

from collections.abc import Iterator

from replay.traces.fields import Fields
from replay.traces.row import Format, Row
from replay.traces.source import Value

SCOPES = ("local", "global")


def _rows(values: Iterator[Value]) -> Iterator[Row]:
    for value in values:
        session = Fields.of(value)
        yield from _session_rows(session, session.key("id") or str(session.place))


def _session_rows(session: Fields, name: str) -> Iterator[Row]:
    block_tokens = session.count("block_size", least=1)
    scope = session.text("hash_id_scope") if "hash_id_scope" in session else "local"
    if scope not in SCOPES:
        raise session.wrong("hash_id_scope", " or ".join(map(repr, SCOPES)))
    local = str(session.place) if scope == "local" else None
    for request in session.objects("requests"):
        if "requests" in request:
            yield from _subagent_rows(request, f"{name}/{request.key('agent_id')}", block_tokens, local)
        else:
            yield _row(request, name, block_tokens, local, starts_s=0.0)


def _subagent_rows(marker: Fields, name: str, block_tokens: int, scope: str | None) -> Iterator[Row]:
    """Times within count from the marker in kv-cache-tester's files, from the session's start in SemiAnalysis'."""
    requests = list(marker.objects("requests"))
    marker_s = marker.number("t")
    from_marker = bool(requests) and requests[0].number("t") < marker_s
    for request in requests:
        yield _row(request, name, block_tokens, scope, starts_s=marker_s if from_marker else 0.0)


def _row(request: Fields, name: str, block_tokens: int, scope: str | None, starts_s: float) -> Row:
    return Row(
        request.place,
        input_tokens=request.count("in", least=1),
        output_tokens=request.count("out"),
        hashes=request.hashes("hash_ids"),
        block_tokens=block_tokens,
        scope=scope,
        arrival_s=starts_s + request.number("t"),
        delay_s=request.optional_number("think_time"),
        session=name,
    )


WEKA = Format("weka", (frozenset({"block_size", "requests"}),), _rows)
