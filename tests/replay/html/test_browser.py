"""The page in a real Chromium: it loads alone, its charts show, its texts can be read on a desk and on a phone.

Each page is left as a picture in the test's directory, to be looked at.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from shutil import which

import pytest

from policies.registry import NAMES
from replay.html.page import as_html

sync_api = pytest.importorskip("playwright.sync_api", reason="NOT CHECKED in a browser: `make test-browser` does")

pytestmark = pytest.mark.browser

CHROMIUMS = ("chromium", "google-chrome")
PATIENCE_MS = 180_000
"""For a machine that has other things to do."""
WIDTHS_PX = (1280, 390)

# Rectangles of all texts that are shown: [text, left, top, right, bottom, whether it may be scrolled to].
TEXTS = """() => {
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, range = document.createRange();
    if (!node.textContent.trim() || node.parentElement.closest("svg")) continue;
    range.selectNodeContents(node);
    for (const r of range.getClientRects())
      texts.push([node.textContent, r.left, r.top, r.right, r.bottom, node.parentElement.closest(".scroll") !== null]);
  }
  return texts;
}"""

CUT = """() => [...document.querySelectorAll("body *")]
  .filter(e => getComputedStyle(e).overflowX === "hidden" && e.scrollWidth > e.clientWidth + 1)
  .map(e => e.textContent)"""

SIZES = """selector => [...document.querySelectorAll(selector)]
  .map(e => e.getBoundingClientRect()).map(r => [r.width, r.height])"""


@pytest.fixture(scope="module")
def browser() -> Iterator["sync_api.Browser"]:
    with sync_api.sync_playwright() as playwright:
        path = next(filter(None, map(which, CHROMIUMS)), None)
        try:
            browser = playwright.chromium.launch(executable_path=path, timeout=PATIENCE_MS)
        except sync_api.Error as error:
            pytest.skip(f"NOT CHECKED in a browser: {error.message.splitlines()[0]}")
        yield browser
        browser.close()


class Opened:
    """A page in the browser, and what it said and asked for while it loaded."""

    def __init__(self, browser: "sync_api.Browser", path: Path, width_px: int) -> None:
        self.said: list[str] = []
        self.requested: list[str] = []
        self.page = browser.new_page(viewport={"width": width_px, "height": 900})
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.page.goto(path.as_uri())


@pytest.fixture(scope="module", params=["three policies", "all policies", "lengths only"])
def path(request, comparison, lengths_only, tmp_path_factory) -> Path:
    reports = cycle(comparison.policies.values())
    comparisons = {
        "three policies": comparison,
        "all policies": replace(comparison, policies=dict(zip(NAMES, reports, strict=False))),
        "lengths only": lengths_only,
    }
    path = tmp_path_factory.mktemp("pages") / f"{request.param.replace(' ', '-')}.html"
    path.write_text(as_html(comparisons[request.param], "conversation_trace.jsonl.gz"), encoding="utf-8")
    return path


@pytest.mark.parametrize("width_px", WIDTHS_PX)
def test_the_page_is_right_in_every_size_and_scheme(browser, path, width_px):
    opened = Opened(browser, path, width_px)
    page = opened.page
    assert opened.said == []
    assert opened.requested == [path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
    assert page.evaluate(CUT) == []
    assert_texts_stand_apart(page)
    assert_charts_show(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=path.with_name(f"{path.stem}-{width_px}-{scheme}.png"), full_page=True)
        assert_accessible(page)
    page.close()


def assert_texts_stand_apart(page) -> None:
    texts = page.evaluate(TEXTS)
    width_px = page.viewport_size["width"]
    assert [
        text for text, left, _, right, _, scrolled in texts if not scrolled and (left < 0 or right > width_px)
    ] == []
    texts.sort(key=lambda text: text[2])
    for place, (text, left, top, right, bottom, _) in enumerate(texts):
        for other, other_left, other_top, other_right, _, _ in texts[place + 1 :]:
            if other_top > bottom - 2:
                break
            beside = other_left > right - 1 or other_right < left + 1
            assert beside, f"{text!r} and {other!r} overlap at {left:.0f}, {top:.0f}"


def assert_charts_show(page) -> None:
    assert len(page.evaluate(SIZES, "svg[role=img]")) >= 4
    for width_px, height_px in page.evaluate(SIZES, "svg[role=img]"):
        assert width_px >= 200
        assert height_px >= 26
    assert all(width_px >= 180 and height_px >= 50 for width_px, height_px in page.evaluate(SIZES, ".curve"))
    assert all(width_px > 0 for width_px, _ in page.evaluate(SIZES, ".panel path"))


def assert_accessible(page) -> None:
    """axe-core's rules: contrast of all texts, names of all charts, order of headings and more."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    results = axe.run(page)
    assert results.violations_count == 0, results.generate_report()


@pytest.fixture
def page(browser, comparison, tmp_path) -> Iterator["sync_api.Page"]:
    path = tmp_path / "page.html"
    path.write_text(as_html(comparison, "trace"), encoding="utf-8")
    page = Opened(browser, path, WIDTHS_PX[0]).page
    yield page
    page.close()


def test_bars_are_as_long_as_what_they_show(page, comparison):
    ratios = [report.hit_ratio for report in comparison.policies.values()]
    for width_px in WIDTHS_PX:
        page.set_viewport_size({"width": width_px, "height": 900})
        chart = page.locator(".bars").first
        names = chart.locator(".names li").all_text_contents()
        lengths_px = chart.locator(".bar").evaluate_all("bars => bars.map(bar => bar.getBBox().width)")
        drawn = dict(zip(names, lengths_px, strict=True))
        px_per_share = sum(lengths_px) / sum(ratios)
        expected = {name: report.hit_ratio * px_per_share for name, report in comparison.policies.items()}
        assert drawn == pytest.approx(expected, abs=1)


def test_dark_is_dark_and_paper_is_white(page):
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(paper) == "rgb(20, 23, 27)"
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate(paper) == "rgb(255, 255, 255)"


def test_who_points_at_a_label_sees_its_curve_alone(page):
    page.locator(".labels li", has_text="round_robin").hover()
    curves = "[...document.querySelectorAll('.field g')].map(g => [g.textContent.trim(), getComputedStyle(g).opacity])"
    opacities = {title.split(":")[0]: opacity for title, opacity in page.evaluate(curves)}
    assert opacities == {"expected_work": "0.2", "round_robin": "1", "dynamo": "0.2"}
