"""The benchmark of `compress`: its figures by name, and what QAT wins back."""

import json

import pytest

from tfaccel.benchmarks import qat_suite
from tfaccel.benchmarks.report import Report
from tfaccel.compressing.compress_result import CompressResult
from tfaccel.compressing.variant import Variant, VariantResult
from tfaccel.errors import CompressionError, TfaccelError
from tfaccel.scripts.benchmark import COMPRESS_FIGURE_NAMES, chosen_figures


def result(name, accuracy, failure=""):
    variant = Variant(name=name, method=name, path=f"{name}.tflite")
    return VariantResult(variant=variant, metrics={"accuracy": accuracy}, failure=failure)


def test_figures_are_found_by_name():
    assert chosen_figures("compress", ["all"]) == list(COMPRESS_FIGURE_NAMES)
    with pytest.raises(TfaccelError, match=r"unknown figure 'qatt'\. Did you mean 'qat'\?"):
        chosen_figures("compress", ["qatt"])


def test_part_won_back():
    figures = {one.quantity: one for one in qat_suite.get_figures([(0.97, 0.95, 0.96), (0.9, 0.8, 0.8)])}
    loss, won = figures["accuracy float32 - int8"], figures["part of that loss won back by qat"]
    assert (loss.values, loss.met) == (pytest.approx((0.02, 0.1)), True)
    assert (won.values, won.met) == (pytest.approx((0.5, 0.0)), False)
    assert figures["accuracy, qat"].values == (0.96, 0.8)


def test_without_a_loss_there_is_nothing_to_win_back():
    figures = qat_suite.get_figures([(0.9, 0.9, 0.9)])
    assert [figure.met for figure in figures] == [False, None, None, None]


def test_form_that_failed_is_named():
    forms = result("float32", 0.9), result("int8", 0.8), result("qat", 0.0, "no such operation")
    with pytest.raises(CompressionError, match=r"could not be compressed by qat: no such operation"):
        qat_suite.accuracies(CompressResult(metric="accuracy", results=forms, held_out="rows"))
    forms = *forms[:2], result("qat", 0.85)
    assert qat_suite.accuracies(CompressResult(metric="accuracy", results=forms, held_out="rows")) == (0.9, 0.8, 0.85)


@pytest.mark.slow
def test_short_run(run_python):
    arguments = ("compress", "--figures=qat", "--repetitions=1", "--scale=0.2", "--json")
    done = run_python("tfaccel.scripts.benchmark", *arguments, check=False, timeout_seconds=500)
    report = Report.from_json(json.loads(done.stdout))
    found = {figure.quantity: figure.median for figure in report.figures}
    assert found["accuracy, float32"] > 0.7
    assert found["accuracy float32 - int8"] >= 0.02
    assert found["part of that loss won back by qat"] > 0
    assert done.returncode == (0 if report.met else 1)
    assert "benchmark: qat, 1 of 1: qat: quantization-aware training: epoch 2/2" in done.stderr
