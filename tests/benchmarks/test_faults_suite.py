"""The benchmark of faults: its figures from made-up launches, and a real fault."""

import pytest

from tfaccel.benchmarks.faults_suite import FAULTS, Launch, fault_figures, run_faults_suite
from tfaccel.benchmarks.suite_options import SuiteOptions

USUAL = Launch(0, "abc", None, None, 4.0, ())


def test_figures_of_a_fault():
    good = Launch(0, "abc", 10.0, 11.0, 8.0, ())
    other = Launch(0, "abd", 10.0, 17.0, 16.0, ())
    same, noticed, goodput = fault_figures("killed_of_two", FAULTS["killed_of_two"], USUAL, [good, other])
    assert (same.values, same.met) == ((1.0, 0.0), False)
    assert (noticed.values, noticed.met) == ((1.0, 7.0), True)
    assert goodput.values == (0.5, 0.25)


def test_a_final_fault_must_end_the_run():
    ended = Launch(1, "", 10.0, 11.0, 8.0, ())
    right, _ = fault_figures("exception_of_two", FAULTS["exception_of_two"], USUAL, [ended])
    assert (right.quantity, right.met) == ("ends with status 1 (1 yes, 0 no)", True)
    wrong, _ = fault_figures("exception_of_two", FAULTS["exception_of_two"], USUAL, [USUAL])
    assert wrong.met is False


@pytest.mark.slow
def test_real_fault():
    options = SuiteOptions(repetitions=1, progress=lambda text: None)
    report = run_faults_suite(["killed_alone"], options)
    assert report.met, report.to_json()["figures"]
    assert len(report.raw["killed_alone"]) == 2
