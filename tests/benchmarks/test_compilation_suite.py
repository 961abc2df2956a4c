"""The benchmark of the compilation cache, measured once."""

import pytest

from tfaccel.benchmarks.compilation_suite import run_compilation_suite
from tfaccel.benchmarks.suite_options import SuiteOptions


@pytest.mark.slow
def test_one_device_is_measured():
    report = run_compilation_suite(["one_device"], SuiteOptions(repetitions=1, progress=lambda text: None))
    processor, wall = report.figures
    assert processor.met
    assert processor.loss_difference == wall.loss_difference == 0.0
    assert {way: len(times) for way, times in report.raw["one_device"].items()} == {
        "empty": 2,
        "without": 1,
        "filled": 1,
    }


@pytest.mark.slow
def test_a_small_model_is_compared_with_keras():
    report = run_compilation_suite(["ten_steps"], SuiteOptions(repetitions=1, progress=lambda text: None))
    [figure] = report.figures
    assert figure.values[0] > 0
    assert figure.loss_difference < figure.loss_tolerance
