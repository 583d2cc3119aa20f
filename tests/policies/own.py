"""What a user's own module of policies may look like."""

from dataclasses import dataclass

from policies.parameters import Share
from policies.views import Candidates, Policy, RequestView


@dataclass(frozen=True, slots=True)
class ByName:
    """The first name that starts with `letter`."""

    letter: str
    times: int = 1
    share: Share = 0.5
    reverse: bool = False

    def __call__(self, request: RequestView, candidates: Candidates, /) -> list[float]:
        return [float(key.startswith(self.letter) is self.reverse) for key in candidates.keys]


def plain() -> Policy:
    return ByName("p")


def hides_its_parameters(**parameters: "Missing") -> Policy:  # noqa: F821
    raise AssertionError("never called")


def fails() -> Policy:
    raise RuntimeError("no table")


def returns_nothing() -> None:
    return None


not_callable = 7
