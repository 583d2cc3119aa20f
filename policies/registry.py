"""Policies by name, as the command line and config files write them: `NAME` or `NAME:key=value:key=value`."""

from collections.abc import Callable
from dataclasses import fields

from policies.baselines import least_requests, random, round_robin
from policies.expected_work import ExpectedWork
from policies.views import Policy

DEFAULT = "expected_work"

_FACTORIES: dict[str, Callable[..., Policy]] = {
    "expected_work": ExpectedWork,
    "least_requests": lambda: least_requests,
    "random": lambda: random,
    "round_robin": lambda: round_robin,
}
_PARAMETERS = {"expected_work": tuple(field.name for field in fields(ExpectedWork))}

NAMES = tuple(_FACTORIES)


def make_policy(text: str) -> Policy:
    """The policy that `text` names. Raises ValueError that says what is wrong and what is allowed."""
    name, *assignments = text.split(":")
    if name not in _FACTORIES:
        raise ValueError(f"unknown policy {name!r}: one of {', '.join(NAMES)}")
    return _FACTORIES[name](**dict(_parameter(name, assignment) for assignment in assignments))


def _parameter(policy: str, assignment: str) -> tuple[str, float]:
    key, equals, value = assignment.partition("=")
    allowed = _PARAMETERS.get(policy, ())
    if key not in allowed:
        raise ValueError(f"policy {policy} has no parameter {key!r}: it takes {', '.join(allowed) or 'none'}")
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not equals or not 0 <= number < float("inf"):
        raise ValueError(f"policy {policy}: {key} must be a number >= 0, not {value!r}")
    return key, number
