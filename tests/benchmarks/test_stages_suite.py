"""The benchmark of pipeline stages: its figures, and one of them measured."""

import pytest

from tfaccel.benchmarks import stages_suite
from tfaccel.benchmarks.stages_suite import run_stages_suite
from tfaccel.benchmarks.suite_options import SuiteOptions


def test_figures_and_their_bounds():
    found = {"parity": {"2 stages": 0.0, "3 stages": 1e-9}, "shares": {"bytes": 0.5, "placed": 0.9}}
    assert [one.met for one in stages_suite._family_figures("mlp", found)] == [True, False, True, False]
    two, one = ({"seconds": [value, 10.0], "CPU seconds": [11.0, 11.0]} for value in (4.0, 10.0))
    ratio, cpu, seconds = stages_suite._epoch_figures({"2 stages": two, "1 device": one})
    assert (ratio.values, ratio.met) == ((0.4, 1.0), True)
    assert (cpu.values, cpu.met, seconds.met) == ((1.0, 1.0), None, None)


@pytest.mark.slow
def test_a_family_is_measured():
    report = run_stages_suite(["mlp"], SuiteOptions(repetitions=1, progress=lambda text: None))
    assert len(report.figures) == 6
    assert report.met
