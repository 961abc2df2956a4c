"""The benchmark of checkpoints, on a small scale."""

import pytest

from tfaccel.benchmarks.checkpoints_suite import run_checkpoints_suite
from tfaccel.benchmarks.suite_options import SuiteOptions


@pytest.mark.slow
def test_all_figures_are_measured():
    report = run_checkpoints_suite(
        ["blocking", "throughput", "resume"], SuiteOptions(repetitions=1, scale=0.02, progress=lambda text: None)
    )
    assert [figure.name for figure in report.figures] == ["blocking"] * 3 + ["throughput"] * 2 + ["resume"] * 10
    assert all(value > 0 for figure in report.figures for value in figure.values)
    assert set(report.raw["blocking"][0]) == {"at_once", "thread"}
