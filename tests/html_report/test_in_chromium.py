"""The report in a browser: charts are drawn, nothing is requested or complained of, at both widths, in both themes."""

import io
import json
from dataclasses import replace

import pytest
from chromium import Browser, executable
from PIL import Image
from report_cases import ATTACK, PLAN, autotune_report, roofline_data, write_comparison, write_run, write_search

from tfaccel import report as write_report

pytestmark = pytest.mark.skipif(executable() is None, reason="needs Chromium: apt-get install chromium")

DRAWN = """[...document.querySelectorAll(".chart")].map(chart => {
  const area = chart.querySelector(".main-svg")?.getBoundingClientRect();
  const marks = chart.querySelectorAll(".scatterlayer path, .barlayer path");
  return [area?.width ?? 0, chart.getBoundingClientRect().width, marks.length];
})"""
CLIPPED = """[...document.querySelectorAll(".chart .annotation text")]
  .filter(one => one.getBoundingClientRect().right > one.closest(".chart").getBoundingClientRect().right + 1)
  .map(one => one.textContent)"""
PAGE_WIDTH = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
SETTLED = "new Promise(done => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 300))"
TEXT_COLORS = """[...document.querySelectorAll(".xtick text, .xtitle, .annotation text, .message p, td, h2")]
  .map(one => one.namespaceURI.endsWith("svg") ? getComputedStyle(one).fill : getComputedStyle(one).color)"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    performance = {"performance": {"examples_per_second": 800.0, "mfu": 0.2, "cpu_utilization": 0.9}}
    runs = [
        write_run(folder / "one", extra=performance),
        write_run(folder / f"other{ATTACK.replace('/', '')}", seed=1, metric=ATTACK),
    ]
    write_comparison(runs[0] / "compressed")
    with_long_label().save(folder / "autotune.json")
    (folder / "roofline.json").write_text(json.dumps(roofline_data()))
    search = write_search(folder / "search", objective=(("val_accuracy", "max"), ("model_bytes", "min")))
    files = {"autotune_report": folder / "autotune.json", "roofline": folder / "roofline.json"}
    return write_report(*runs, search, output=folder / "report.html", **files)


def with_long_label():
    """A report with a candidate that differs from the first one in many fields."""
    report = autotune_report()
    first, second, third = report.candidates
    plan = replace(PLAN, intra_op_threads=16, inter_op_threads=16, memory_allocator="glibc_huge_pages", data_threads=4)
    return replace(report, candidates=(first, replace(second, plan=plan), third))


@pytest.mark.parametrize(
    "shown_as",
    [
        [(1280, "light"), (390, "dark")],
        pytest.param([(390, "light"), (1280, "dark"), (320, "light")], marks=pytest.mark.slow),
    ],
)
def test_page_is_drawn_at_any_width_in_both_themes(report, shown_as, tmp_path):
    num_charts = sum(report.sections.values())
    assert num_charts > 10
    with Browser(tmp_path) as browser:
        browser.show_as(width=shown_as[0][0], theme=shown_as[0][1])
        browser.open(report.path)
        colors = {}
        for width, theme in shown_as:
            browser.show_as(width=width, theme=theme)
            browser.value(SETTLED)
            assert browser.value(PAGE_WIDTH) == width, "the page must not scroll sideways"
            charts = browser.value(DRAWN)
            assert len(charts) == num_charts
            for drawn, room, num_marks in charts:
                assert 200 < drawn <= room + 1 <= width
                assert num_marks > 0
            assert browser.value(CLIPPED) == []
            image = Image.open(io.BytesIO(browser.screenshot())).convert("RGB")
            background, *_ = sorted(image.getcolors(2**24), reverse=True)
            assert image.width == width
            assert len(image.getcolors(2**24)) > 100, "a blank page"
            is_dark = sum(background[1]) < 3 * 128
            assert is_dark == (theme == "dark")
            colors[theme] = set(browser.value(TEXT_COLORS))
        assert colors["light"].isdisjoint(colors["dark"])
        assert browser.value("typeof window.attacked") == "undefined"
        assert browser.said() == []
        assert browser.requested() == [report.path.absolute().as_uri()]


@pytest.mark.slow
def test_page_fits_on_paper(report, tmp_path):
    with Browser(tmp_path) as browser:
        browser.show_as(width=1280, theme="dark")
        browser.open(report.path)
        browser.value("window.dispatchEvent(new Event('beforeprint'))")
        browser.call("Emulation.setEmulatedMedia", media="print")
        assert {round(drawn) for drawn, _, _ in browser.value(DRAWN)} == {620}
        browser.call("Emulation.setEmulatedMedia", media="screen")
        browser.value("window.dispatchEvent(new Event('afterprint'))")
        browser.value(SETTLED)
        assert all(620 != round(drawn) <= room + 1 for drawn, room, _ in browser.value(DRAWN))
        assert browser.said() == []
