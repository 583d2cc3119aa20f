"""In what order the page shows policies, which one leads, and what they are held against."""

from collections.abc import Mapping
from dataclasses import dataclass

from replay.simulator.report import PolicyReport

BASELINE = "round_robin"
COLOURS = 6
"""As many as can be told apart by everyone; policies beyond them are grey."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A policy and its place by mean TTFT, 0 for the lowest."""

    rank: int
    name: str
    report: PolicyReport

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def colour(self) -> int:
        return min(self.rank, COLOURS)


def ranked(policies: Mapping[str, PolicyReport]) -> list[Ranked]:
    ordered = sorted(policies.items(), key=lambda item: item[1].ttft_ms.mean)
    return [Ranked(rank, name, report) for rank, (name, report) in enumerate(ordered)]


def baseline(ranks: list[Ranked]) -> Ranked | None:
    """Round robin, where it ran and does not lead; otherwise the last. None if there is nobody else."""
    others = ranks[1:]
    return next((each for each in others if each.name == BASELINE), others[-1] if others else None)


def first_to_finish(ranks: list[Ranked]) -> Ranked:
    return min(ranks, key=lambda each: each.report.e2e_ms.mean)
