"""What the page says and shows is what the comparison has, and nothing a user named can break out of it."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from markupsafe import escape

from replay.html.bars import hit_ratios, regrets
from replay.html.curves import ttft_distribution
from replay.html.heat import load_maps
from replay.html.numbers import duration, signed
from replay.html.page import as_html
from replay.html.ranking import ranked
from replay.html.words import latency, reasons
from replay.stats import Summary

EXPECTED_WORK, ROUND_ROBIN, DYNAMO = "expected_work", "round_robin", "dynamo:prefill_load_scale=16"


class Text(HTMLParser):
    """The text of a page, and its tables as rows of cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.rows: list[list[str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


def with_reports(comparison, **changes):
    """`changes` by policy name: functions from its report to another."""
    reports = {name: changes.get(name, lambda each: each)(report) for name, report in comparison.policies.items()}
    return replace(comparison, policies=reports)


def times(ttft_ms: float, e2e_ms: float):
    summary = Summary(0.0, 1.0, 2.0, 3.0)
    return lambda report: replace(report, ttft_ms=replace(summary, mean=ttft_ms), e2e_ms=replace(summary, mean=e2e_ms))


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0.456, "0.456 ms"),
        (999.4, "999 ms"),
        (999.6, "1 s"),
        (4454, "4.45 s"),
        (99_949, "99.9 s"),
        (99_951, "1.67 min"),
        (3_537_000, "59 min"),
        (7_200_000, "2.0 h"),
        (36_000_000_000, "10,000.0 h"),
    ],
)
def test_durations_have_the_unit_that_suits(ms, text):
    assert duration(ms).replace("\u00a0", " ") == text


@pytest.mark.parametrize(("value", "text"), [(1234.56, "+1,234.6"), (-0.04, "0.0"), (-0.06, "\u22120.1"), (0, "0.0")])
def test_differences_have_a_sign_unless_they_are_nothing(value, text):
    assert signed(value, digits=1) == text


def test_it_needs_nothing_but_itself(comparison):
    page = as_html(comparison, "trace.jsonl")
    assert "<script" not in page
    assert re.findall(r'(?:src|href|action)="([^"]*)"', page) == ["data:,"]
    assert not re.search(r"https?:|@import|url\(", page)
    assert "default-src 'none'" in page


def test_the_same_comparison_gives_the_same_page(comparison):
    assert as_html(comparison, "trace.jsonl") == as_html(comparison, "trace.jsonl")


def test_names_cannot_break_out(comparison):
    hostile = """</style><script>alert(1)</script>"onload='x'&amp;"""
    reports = dict(zip((hostile, hostile + "2"), comparison.policies.values(), strict=False))
    page = as_html(replace(comparison, policies=reports), hostile)
    assert "<script" not in page
    assert page.count("</style>") == 1
    assert hostile not in page
    assert str(escape(hostile)) in page
    assert hostile in Text(page).text


def test_the_head_says_what_was_run(comparison):
    page = as_html(comparison, "trace.jsonl")
    assert "<dt>Seed</dt><dd>7</dd>" in page
    text = " ".join(Text(page).text.split())
    requests = len(comparison.trace.requests)
    for fact in (
        "trace.jsonl",
        f"{requests} requests (mix) over",
        "4 workers with 2,000 blocks of 16 tokens each; a pass takes 8,192 tokens of 256 sequences at most",
        "linear prefill_tokens_per_s 20000, step_ms 10",
        "open loop, 2 times the recorded speed",
        "KV events 0.5 s late, 10.0 % of them lost, worker 2 restarts at 20 s",
    ):
        assert fact in text


@pytest.mark.parametrize(
    ("expected_work", "round_robin", "dynamo", "said"),
    [
        (
            (100, 4000),
            (200, 5000),
            (150, 4500),
            "expected_work answers first: mean TTFT 100 ms, 50 % below round_robin. "
            "It also finishes first: mean end to end 4 s, 20 % below round_robin.",
        ),
        (
            (100, 6000),
            (200, 5000),
            (150, 4500),
            "expected_work answers first: mean TTFT 100 ms, 50 % below round_robin. "
            "dynamo:prefill_load_scale=16 finishes first: mean end to end 4.5 s, 10 % below round_robin.",
        ),
        (
            (100, 6000),
            (200, 5000),
            (150, 7000),
            "expected_work answers first: mean TTFT 100 ms, 50 % below round_robin. "
            "round_robin finishes first: mean end to end 5 s.",
        ),
        (
            (300, 4000),
            (200, 2000),
            (250, 4500),
            "round_robin answers first: mean TTFT 200 ms, 33 % below expected_work. "
            "It also finishes first: mean end to end 2 s, 50 % below expected_work.",
        ),
    ],
)
def test_the_verdict(comparison, expected_work, round_robin, dynamo, said):
    changed = with_reports(
        comparison,
        **{EXPECTED_WORK: times(*expected_work), ROUND_ROBIN: times(*round_robin), DYNAMO: times(*dynamo)},
    )
    sentences = " ".join(latency(ranked(changed.policies)))
    assert re.sub("<.*?>", "", sentences).replace("\u00a0", " ") == said


def test_a_single_policy_is_held_against_nobody(comparison):
    alone = with_reports(replace(comparison, policies={"a": comparison.policies[EXPECTED_WORK]}), a=times(100, 2000))
    [sentence] = latency(ranked(alone.policies))
    assert re.sub("<.*?>", "", sentence).replace("\u00a0", " ") == "a: mean TTFT 100 ms, mean end to end 2 s."
    assert as_html(alone, "trace")


def test_rejected_requests_are_told(comparison):
    changed = with_reports(comparison, **{name: lambda r: replace(r, rejected=3) for name in comparison.policies})
    [leader, *_] = ranked(changed.policies)
    assert [*reasons(changed, leader)][-1].startswith("3 of ")


def test_the_tables_have_every_number(comparison):
    rows = [row for row in Text(as_html(comparison, "trace")).rows if row[0] in comparison.policies]
    cache, load = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    by_ttft = sorted(comparison.policies, key=lambda name: comparison.policies[name].ttft_ms.mean)
    assert [row[0] for row in cache] == [row[0] for row in load] == by_ttft
    for name, *cells in cache:
        report = comparison.policies[name]
        regret = report.regret
        assert cells[:2] == [f"{100 * share:.1f}" for share in (report.hit_ratio, report.predicted_hit_ratio)]
        numbers = [float(cell.replace("\u2212", "-").replace(",", "")) for cell in cells[2:6]]
        in_points = [100 * share for share in (regret.capacity, regret.routing, regret.index)]
        assert numbers == pytest.approx([*in_points, regret.latency_ms], abs=0.051)
        assert cells[6:9] == [f"{report.load_cv:.2f}", f"{100 * report.max_share:.1f}", "0"]
    for name, *cells in load:
        report = comparison.policies[name]
        summaries = [(report.ttft_ms, 0), (report.itl_ms, 1), (report.e2e_ms, 0)]
        assert cells == [f"{value:,.{digits}f}" for s, digits in summaries for value in (s.mean, s.p50, s.p90, s.p99)]


def test_lengths_only_are_shown_without_hits(lengths_only):
    page = Text(as_html(lengths_only, "trace"))
    assert "what its prompts share, and so any hit, cannot be known" in page.text
    assert "Routing" not in page.text
    assert all("achieved" not in row for row in page.rows)
    assert next(row for row in reversed(page.rows) if row[0] == ROUND_ROBIN)[5:9] == ["–"] * 4


def test_bars_and_bounds_end_at_their_values(comparison):
    ranks = ranked(comparison.policies)
    chart = hit_ratios(ranks, comparison.bounds)
    share_at_end = float(chart.ticks[-1].label) / 100
    assert [bar.end / 100 * share_at_end for bar in chart.bars] == pytest.approx(
        [each.report.hit_ratio for each in ranks], abs=1e-4
    )
    endless, belady, lru = (mark.percent / 100 * share_at_end for mark in chart.bounds)
    bounds = comparison.bounds
    assert (endless, belady, lru) == pytest.approx((bounds.infinite, bounds.pooled_belady, bounds.pooled_lru), abs=1e-4)


def test_what_is_less_than_nothing_is_left_of_zero(comparison):
    changed = with_reports(
        comparison, **{ROUND_ROBIN: lambda r: replace(r, regret=replace(r.regret, latency_ms=-40.0))}
    )
    latency_chart = next(c for c in regrets(ranked(changed.policies), changed.bounds) if c.id == "latency")
    bars = {bar.name: bar for bar in latency_chart.bars}
    assert bars[ROUND_ROBIN].end < bars[ROUND_ROBIN].start
    assert bars[ROUND_ROBIN].label == "\u221240.0"
    assert bars[EXPECTED_WORK].end > bars[EXPECTED_WORK].start
    zero = next(tick for tick in latency_chart.ticks if tick.label == "0")
    assert zero.percent == bars[ROUND_ROBIN].start


def test_curves_go_through_the_percentiles(comparison):
    chart = ttft_distribution(ranked(comparison.policies))
    highest = {mark.percent: mark.label for mark in chart.times}
    assert {0, 100} <= set(highest)
    places = {mark.label: mark.percent for mark in chart.percentiles}
    for curve in chart.curves:
        heights = dict(point.split(",") for point in curve.points.split())
        ttft = comparison.policies[curve.name].ttft_ms
        ys = [float(heights[f"{places[p]:g}"]) for p in ("p50", "p90", "p99")]
        assert ys == sorted(ys, reverse=True)
        assert curve.end_px == ys[-1]
        assert f"{ttft.p99:.3g}" in curve.label or ttft.p99 >= 1000


def test_maps_have_the_shade_of_each_load(comparison):
    ranks = ranked(comparison.policies)
    maps = load_maps(ranks)
    thresholds = [float(level) for level in maps.levels]
    for each, panel in zip(ranks, maps.panels, strict=True):
        assert panel.name == each.name
        for row, loads in zip(panel.rows, each.report.load.workers, strict=True):
            shades = [0] * len(loads)
            for level, path in row.runs:
                for start, length in re.findall(r"M(\d+) \d+h(\d+)v1h-\d+z", path):
                    shades[int(start) : int(start) + int(length)] = [level] * int(length)
            assert shades == [sum(load >= threshold for threshold in thresholds) for load in loads]
