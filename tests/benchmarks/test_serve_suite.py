"""The server's benchmark measures real servers; figures of windows this short mean nothing, but no request may fail."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tfaccel.benchmarks.serve_reloads import main, measure_reloads, picture
from tfaccel.benchmarks.serve_suite import SERVE_FIGURES, run_serve_suite
from tfaccel.benchmarks.served_files import exported
from tfaccel.benchmarks.served_model import ServedModel
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.errors import ServeError, TfaccelError
from tfaccel.scripts.benchmark import chosen_figures

ROOT = Path(__file__).parents[2]


def test_figures_are_found_by_name():
    assert chosen_figures("serve", ["all"]) == list(SERVE_FIGURES)
    with pytest.raises(TfaccelError, match=r"unknown figure 'soek'\. Did you mean 'soak'\?"):
        chosen_figures("serve", ["soek"])


def test_server_that_does_not_start_says_why(tmp_path):
    with (
        pytest.raises(ServeError, match=r"The server did not start: .*There is no file or folder .*nowhere"),
        ServedModel(tmp_path / "nowhere"),
    ):
        pass


def test_picture_shows_the_memory_of_each_model():
    drawn = ElementTree.fromstring(picture({"digits": [100, 102, 102], "resnet50": [200, 230, 236]}))
    assert drawn.attrib["aria-label"] == (
        "Memory after 2 reloads, relative to that before: digits 102%, resnet50 118%."
    )
    lines = [one for one in drawn.iter() if one.tag.endswith("polyline")]
    assert [len(one.attrib["points"].split()) for one in lines] == [3, 3]


def test_picture_of_the_docs_shows_the_kept_report(tmp_path):
    assert main([str(ROOT / "benchmarks/serve.json"), str(tmp_path / "drawn.svg")]) == 0
    assert (ROOT / "docs/pictures/reloads.svg").read_text() == (tmp_path / "drawn.svg").read_text()


@pytest.mark.slow
def test_memory_is_read_before_and_after_each_reload(tmp_path):
    model = exported("image_classification", tmp_path / "digits", lambda line: None)
    options = SuiteOptions(repetitions=1, scale=0.03, progress=lambda line: None)
    figures, raw = measure_reloads("digits", model, options)
    assert len(raw["resident_bytes"]) == 4
    failed = next(figure for figure in figures if figure.quantity.startswith("failed requests of"))
    assert failed.met
    assert not (model / "reloads").exists() and not [*model.glob("version-*")]


@pytest.mark.slow
@pytest.mark.usefixtures("logical_devices")
def test_no_request_fails_while_a_version_comes():
    lines = []
    options = SuiteOptions(repetitions=1, scale=0.1, progress=lines.append)
    report = run_serve_suite(["image_classification", "soak"], options)
    found = {figure.quantity: figure for figure in report.figures if figure.name == "soak"}
    failed = next(figure for quantity, figure in found.items() if quantity.startswith("failed requests"))
    assert (failed.met, found["versions that answered at the end"].met) == (True, True)
    gain = next(figure for figure in report.figures if "with batching / without" in figure.quantity)
    assert gain.median > 1.0
    assert any("without batching, 1 of 1" in line for line in lines)
