"""Typed reads of a JSON object's fields; what does not fit is an InvalidRequest that names field, value and range."""

from collections.abc import Mapping
from typing import Any

import orjson

from protocol.errors import InvalidRequest

_SHOWN_CHARS = 60


def shown(value: object) -> str:
    """A parsed JSON value for an error message: scalars as JSON, cut where they get long; containers by their kind."""
    if value and isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def boolean(fields: Mapping[str, Any], name: str, default: bool = False, *, within: str = "") -> bool:
    """`within` is the path of `fields` itself in the body, for the error."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong_value(within + name, "true or false", value)
    return value


def integer(fields: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """A whole number in [low, high]; None when it is not given."""
    value = fields.get(name)
    if value is not None and not (type(value) is int and low <= value <= high):
        raise wrong_value(name, f"a whole number from {low} to {high}", value)
    return value


def number(fields: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    """A number in [low, high]; None when it is not given."""
    value = fields.get(name)
    if value is not None and not (type(value) in (int, float) and low <= value <= high):
        raise wrong_value(name, f"a number from {low:g} to {high:g}", value)
    return value


def wrong_value(param: str, allowed: str, value: object) -> InvalidRequest:
    """The error for a value that is not what is allowed."""
    return InvalidRequest(f"'{param}' must be {allowed}, not {shown(value)}", param=param)
