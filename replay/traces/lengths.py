"""Formats that hold lengths only: Azure's and BurstGPT's tables, and Warmroute's own decision log."""

from collections.abc import Iterator

from replay.traces.fields import Fields
from replay.traces.row import Format, Row
from replay.traces.source import Value


def _azure_rows(values: Iterator[Value]) -> Iterator[Row]:
    """CSV `TIMESTAMP,ContextTokens,GeneratedTokens`, times as dates; inference-perf calls it AzurePublicDataset."""
    for value in values:
        fields = Fields.of(value)
        yield Row(
            fields.place,
            input_tokens=fields.count("ContextTokens", least=1),
            output_tokens=fields.count("GeneratedTokens"),
            arrival_s=fields.time_s("TIMESTAMP"),
        )


def _burstgpt_rows(values: Iterator[Value]) -> Iterator[Row]:
    """CSV, `Timestamp` in seconds, a session where the file has one. Rows without an answer are failures: left out."""
    for value in values:
        fields = Fields.of(value)
        if answer_tokens := fields.count("Response tokens"):
            yield Row(
                fields.place,
                input_tokens=fields.count("Request tokens", least=1),
                output_tokens=answer_tokens,
                arrival_s=fields.number("Timestamp"),
                session=fields.key("Session ID") or None,
            )


def _decision_rows(values: Iterator[Value]) -> Iterator[Row]:
    """One answer of GET /decisions, whole or an entry a line. Ages count from when it was asked for, so answers of
    several times do not belong in one file. Only requests whose engine reported their usage are known in length."""
    for value in values:
        fields = Fields.of(value)
        entries = fields.objects("decisions") if "decisions" in fields else [fields]
        yield from (_decision_row(entry) for entry in entries if _is_answered(entry))


def _is_answered(entry: Fields) -> bool:
    return "finish" in entry and "completion_tokens" in entry.inner("finish")


def _decision_row(entry: Fields) -> Row:
    finish = entry.inner("finish")
    return Row(
        entry.place,
        input_tokens=finish.count("reported_prompt_tokens", least=1),
        output_tokens=finish.count("completion_tokens"),
        arrival_s=-entry.number("age_s"),
        duration_s=finish.number("duration_s"),
    )


AZURE = Format("azure", (frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),), _azure_rows)
BURSTGPT = Format("burstgpt", (frozenset({"Timestamp", "Request tokens", "Response tokens"}),), _burstgpt_rows)
DECISIONS = Format("decisions", (frozenset({"decisions"}), frozenset({"age_s", "slot", "candidates"})), _decision_rows)
