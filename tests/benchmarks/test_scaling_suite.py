"""The benchmark of predicted scaling: its figures from made-up times, the published rows, and a short run."""

import json

import pytest

from tfaccel.benchmarks import scaling_suite
from tfaccel.benchmarks.published_scaling import published_scalings
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.scaling_suite import Repetition, local_figures, published_figures
from tfaccel.extras.estimates.loopback import LinkFit
from tfaccel.scripts.benchmark import chosen_figures


def test_figures_are_found_by_name():
    assert chosen_figures("scaling", ["all"]) == list(scaling_suite.SCALING_FIGURES)


def test_local_figures_by_hand():
    link = LinkFit(latency_seconds=0.01, bytes_per_second=1e6, num_bytes=(4,), measured_seconds=(0.02,), max_error=0.0)
    alone = {"mlp": {"whole": [0.5], "half": [0.3], "gradient_bytes": [80_000]}}
    together = {"mlp": {"whole": [0.8], "half": [0.5]}}
    figures = {one.quantity: one.median for one in local_figures("mlp", [Repetition(alone, together, link)])}
    assert figures["weak scaling: measured efficiency of 2 workers"] == pytest.approx(0.5 / 0.8)
    assert figures["weak scaling: predicted efficiency of 2 workers"] == pytest.approx(0.5 / 0.6)
    assert figures["weak scaling: predicted / measured step time"] == pytest.approx(0.6 / 0.8)
    assert figures["strong scaling: measured efficiency of 2 workers"] == pytest.approx(0.5 / 0.5 / 2)
    assert figures["strong scaling: predicted / measured step time"] == pytest.approx((0.3 + 0.1) / 0.5)


def test_published_rows_name_their_source_and_agree_with_the_published_factors():
    rows = {row.name: row for row in published_scalings()}
    assert all(row.source.startswith("https://") for row in rows.values())
    assert 8 * rows["ResNet-50 v1.5, DGX A100, TF32"].published_efficiency == pytest.approx(7.70, abs=0.005)
    large = rows["BERT-Large pretraining, length 128, 32 DGX A100, mixed precision"]
    assert 32 * large.published_efficiency == pytest.approx(28.99, abs=0.01)
    assert (large.accumulation_steps, large.replicas) == (1, 256)
    assert all(0 < row.predicted_efficiency <= 1 for row in rows.values())


def test_published_figures_have_a_summary():
    *rows, ratio, error = published_figures()
    assert len(rows) == len(ratio.values) == len(error.values) == len(published_scalings())
    assert ratio.minimum <= ratio.median <= ratio.maximum


@pytest.mark.slow
def test_short_run(run_python):
    arguments = ("scaling", "--figures=cnn", "--repetitions=1", "--scale=0.1", "--json")
    done = run_python("tfaccel.scripts.benchmark", *arguments, check=False, timeout_seconds=500)
    report = Report.from_json(json.loads(done.stdout))
    found = {figure.quantity: figure.median for figure in report.figures}
    assert 0 < found["weak scaling: predicted efficiency of 2 workers"] <= 1
    assert found["weak scaling: measured efficiency of 2 workers"] > 0
    assert [one.name for one in report.measurements["cnn"]][:2] == [
        "1 worker, whole replica batch",
        "1 worker, half replica batch",
    ]
