"""What all processes of a router say, as one answer. Pure functions of what each said, by its number."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from itertools import islice

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from router.metrics import SHARED_GAUGES
from router.records import CacheState, Decision, Finish, SlotReport, WorkerReport

HEALTHS = ("joining", "down", "up")  # from what lets a process place least there

Logged = tuple[Decision, Finish | None]


def merged_workers(views: Mapping[int, Sequence[WorkerReport]]) -> list[WorkerReport]:
    """Each worker once, as the process sees it that can place least there: a request may land on any of them.

    Load needs no merging: each process tells that of all.
    """
    by_worker: dict[str, dict[int, WorkerReport]] = {}
    for process, reports in views.items():
        for report in reports:
            by_worker.setdefault(report.id, {})[process] = report
    return [_merged_worker(seen) for seen in by_worker.values()]


def _merged_worker(seen: Mapping[int, WorkerReport]) -> WorkerReport:
    process, worst = min(seen.items(), key=lambda item: HEALTHS.index(item[1].health))
    agreed = all(report.health == worst.health for report in seen.values())
    by_slot: dict[str, list[SlotReport]] = {}
    for report in seen.values():
        for slot in report.slots:
            by_slot.setdefault(slot.slot, []).append(slot)
    return replace(
        worst,
        draining=any(report.draining for report in seen.values()),
        reason=worst.reason if agreed else f"process {process}: {worst.reason}",
        slots=tuple(map(_least_known, by_slot.values())),
    )


def _least_known(seen: Sequence[SlotReport]) -> SlotReport:
    return min(seen, key=lambda slot: (slot.cache_state is CacheState.LIVE, slot.blocks))


def merged_decisions(logs: Iterable[Sequence[Logged]], last: int) -> list[Logged]:
    """The last ones of all, newest first, as each log is. Clocks of one machine's processes agree."""
    return list(islice(merge(*logs, key=lambda logged: -logged[0].at_s), last))


class JointScrape(Collector):
    """All samples, told apart by a label `process`, and whether each process answered. What is of all processes in
    each scrape (SHARED_GAUGES) comes once, without the label.

    Nothing is summed: a counter that falls because a process was started again would look like a reset of all, and
    what each process follows for itself (events, cached blocks) adds up to nothing.
    """

    def __init__(self, scrapes: Mapping[int, Iterable[Metric]], unanswered: Iterable[int]) -> None:
        self._scrapes, self._unanswered = scrapes, unanswered

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for process, scrape in self._scrapes.items():
            for family in scrape:
                into = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                into.samples += _once(family, into) if family.name in SHARED_GAUGES else _labelled(family, process)
        yield from families.values()
        up = GaugeMetricFamily("warmroute_process_up", "1 if the process answered this scrape.", labels=["process"])
        for process in sorted([*self._scrapes, *self._unanswered]):
            up.add_metric([str(process)], float(process in self._scrapes))
        yield up


def _labelled(family: Metric, process: int) -> list[Sample]:
    return [sample._replace(labels={**sample.labels, "process": str(process)}) for sample in family.samples]


def _once(family: Metric, into: Metric) -> list[Sample]:
    known = {tuple(sample.labels.items()) for sample in into.samples}
    return [sample for sample in family.samples if tuple(sample.labels.items()) not in known]
