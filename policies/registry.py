"""Policies by name, as the command line and config files write them.

`NAME[:key=value...]` is one of ours, `package.module:factory[:key=value...]` a policy of the user's own: the dot tells
them apart. `factory` is any callable that returns a Policy, such as a dataclass with `__call__`.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from policies.affinity import Preble, SMetric, StickyUntilSaturated, TwoTier
from policies.baselines import least_prefill, least_requests, power_of_two, random, round_robin
from policies.costs import Dynamo, Ttft, lmetric
from policies.expected_work import ExpectedWork
from policies.hashed import Chwbl, DualMap, Session
from policies.parameters import parse
from policies.views import Policy

DEFAULT = "expected_work"

Factory = Callable[..., Policy]

_FACTORIES: dict[str, Factory] = {
    "expected_work": ExpectedWork,
    "sticky_until_saturated": StickyUntilSaturated,
    "lmetric": lambda: lmetric,
    "ttft": Ttft,
    "smetric": SMetric,
    "dualmap": DualMap,
    "dynamo": Dynamo,
    "two_tier": TwoTier,
    "preble": Preble,
    "chwbl": Chwbl,
    "session": Session,
    "round_robin": lambda: round_robin,
    "random": lambda: random,
    "least_requests": lambda: least_requests,
    "least_prefill": lambda: least_prefill,
    "power_of_two": lambda: power_of_two,
}

NAMES = tuple(_FACTORIES)


def make_policy(text: str) -> Policy:
    """The policy that `text` names. Raises ValueError that says what is wrong and what is allowed."""
    name, *assignments = text.split(":")
    if "." not in name:
        return _build(name, _built_in(name), assignments)
    attribute, *assignments = assignments or [""]
    return _build(f"{name}:{attribute}", _imported(name, attribute), assignments)


def _built_in(name: str) -> Factory:
    if name not in _FACTORIES:
        raise ValueError(f"unknown policy {name!r}: one of {', '.join(NAMES)}, or your own as package.module:factory")
    return _FACTORIES[name]


def _imported(module: str, attribute: str) -> Factory:
    try:
        factory: Factory | None = getattr(import_module(module), attribute, None)
    except Exception as error:  # a module of the user's may raise anything while it is imported
        raise ValueError(f"policy {module}:{attribute}: cannot import {module}: {error!r}") from error
    if not callable(factory):
        raise ValueError(f"policy {module}:{attribute}: {module} has no factory {attribute!r}")
    return factory


def _build(name: str, factory: Factory, assignments: list[str]) -> Policy:
    kinds = _parameters(name, factory)
    values = dict(_parameter(name, kinds, assignment) for assignment in assignments)
    try:
        policy = factory(**values)
    except Exception as error:  # and so may a factory of the user's
        raise ValueError(f"policy {name}: {error}") from error
    if not callable(policy):
        raise ValueError(f"policy {name}: the factory returned {policy!r}, which cannot be called")
    return policy


def _parameters(name: str, factory: Factory) -> Mapping[str, Any]:
    """The annotations of what `factory` takes by keyword, by name."""
    try:
        parameters = inspect.signature(factory, eval_str=True).parameters.values()
    except Exception as error:  # annotations are code, too
        raise ValueError(f"policy {name}: its parameters cannot be read: {error!r}") from error
    return {p.name: p.annotation for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _parameter(policy: str, kinds: Mapping[str, Any], assignment: str) -> tuple[str, object]:
    key, _, value = assignment.partition("=")
    if key not in kinds:
        raise ValueError(f"policy {policy} has no parameter {key!r}: it takes {', '.join(kinds) or 'none'}")
    try:
        return key, parse(kinds[key], value)
    except ValueError as error:
        raise ValueError(f"policy {policy}: {key} must be {error}, not {value!r}") from None
