"""The kinds of parameters that policies take, and how they are read from text."""

from dataclasses import dataclass
from math import inf, isfinite
from typing import Annotated, Any, get_args, get_origin


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a finite number, both allowed. Its text completes "must be ..."."""

    low: float
    high: float = inf

    def __contains__(self, number: float) -> bool:
        return isfinite(number) and self.low <= number <= self.high

    def __str__(self) -> str:
        if self.high < inf:
            return f"a number from {self.low:g} to {self.high:g}"
        return f"a number >= {self.low:g}" if self.low > -inf else "a number"


Amount = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Factor = Annotated[float, Range(1)]


def parse(kind: Any, text: str) -> object:
    """`text` as a value of the annotation `kind`: int, float (plain or with a Range) or bool; any other gets the text.

    Raises ValueError with what is allowed, completing "must be ...".
    """
    base, allowed = get_args(kind) if get_origin(kind) is Annotated else (kind, Range(-inf))
    if base is bool:
        return _parse_bool(text)
    if base not in (int, float):
        return text
    try:
        number = base(text)
    except ValueError:
        number = None
    if number is None or number not in allowed:
        raise ValueError(str(allowed) if base is float else "a whole number")
    return number


def _parse_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"
