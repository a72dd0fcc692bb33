"""The page of bench.repetition, opened in Chromium: on a phone, in both colour schemes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from _tools import PAGE_TOOLS
from bench.repetition.report import write_report
from bench_run import write_run
from browser import Page, browser
from system_tools import require

SWEEP = (("lz 0.15", "lz", 0.15, 0.0, 0.1), ("lz 0.3", "lz", 0.3, 0.1, 0.1))
NARROW = (360, 390)

# The contrast (WCAG 2) of every element that a selector finds: of one of its colours with its card.
CONTRASTS = """
(() => {
  const light = colour => {
    const scale = colour.startsWith("color(") ? 1 : 255;
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(part => part / scale)
      .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  return [...document.querySelectorAll(%r)].map(element => {
    const behind = getComputedStyle(%r ? element : element.closest(".card")).backgroundColor;
    const pair = [light(getComputedStyle(element)[%r]), light(behind)];
    return Math.max(...pair) / Math.min(...pair);
  });
})()
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("report")
    write_run(directory, variants=(("none", "", None, 0.0, 1.0), *SWEEP), judged=True)
    write_report(directory)
    return directory / "report.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    require(PAGE_TOOLS)
    with browser(tmp_path_factory.mktemp("browser") / "profile") as page:
        yield page


@pytest.fixture(autouse=True)
def quiet_and_alone(page: Page, report: Path) -> Iterator[None]:
    """Nothing is logged, and nothing is asked for but the page itself."""
    page.requests.clear()
    page.complaints.clear()
    yield
    page.evaluate("1")  # what was on its way has arrived
    assert page.complaints == []
    assert set(page.requests) == {report.as_uri()}


def contrasts(page: Page, selector: str, colour: str, own_background: bool = False) -> list[float]:
    found = page.evaluate(CONTRASTS % (selector, int(own_background), colour))
    assert found, selector
    return found


@pytest.mark.parametrize("width", NARROW)
def test_nothing_is_wider_than_a_phone(page: Page, report: Path, width: int) -> None:
    page.open(report, width, "light")
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    # A table may be wider than what it scrolls in, which the keyboard can reach.
    wide = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)"
    assert page.evaluate(f"{wide}.length") > 0
    assert page.evaluate(f"{wide}.every(each => each.tabIndex == 0)")


def test_the_charts_fill_the_phone(page: Page, report: Path) -> None:
    page.open(report, NARROW[0], "light")
    boxes = page.evaluate(
        "[...document.querySelectorAll('figure svg')].map(e => e.getBoundingClientRect().width)"
    )
    assert len(boxes) == 2
    assert all(NARROW[0] * 0.8 < width < NARROW[0] for width in boxes)
    smallest = (
        "Math.min(...[...document.querySelectorAll('figure svg text')]"
        ".map(e => e.getBoundingClientRect().height))"
    )
    assert page.evaluate(smallest) >= 9  # CSS pixels of a line


def test_the_page_follows_the_colour_scheme(page: Page, report: Path) -> None:
    backgrounds = {}
    for scheme in ("light", "dark"):
        page.open(report, 1200, scheme)
        backgrounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert backgrounds["light"] == "rgb(246, 247, 249)"
    assert backgrounds["dark"] == "rgb(16, 18, 22)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_plots_and_text_are_legible(page: Page, report: Path, scheme: str) -> None:
    """WCAG 2 asks for 4.5 : 1 of text and for 3 : 1 of lines."""
    page.open(report, 1200, scheme)
    assert min(contrasts(page, "figure svg text", "fill")) >= 4.5
    lines = "figure svg path[style*='--line-'][style*='stroke-width: 2']"
    assert min(contrasts(page, lines, "stroke")) >= 3
    assert min(contrasts(page, ".heat td", "color", own_background=True)) >= 4.5
    assert min(contrasts(page, ".card td, .card th, .card li, .card summary", "color")) >= 4.5
    assert min(contrasts(page, ".dot", "backgroundColor")) >= 3


def test_charts_have_names(page: Page, report: Path) -> None:
    page.open(report, 1200, "light")
    names = page.evaluate(
        "[...document.querySelectorAll('svg')].map(e => [e.role, e.getAttribute('aria-label')])"
    )
    assert names == [
        ["img", "Accuracy over temperature, task pocket"],
        ["img", "Degenerate outputs over temperature, task pocket"],
    ]
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(each => each.id)")
    assert len(set(ids)) == len(ids)
