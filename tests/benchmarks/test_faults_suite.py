"""The matrix of faults: each row is done for real; the figures of trials."""

import json

import pytest

from tfaccel.benchmarks.fault_row import FaultRow, NotPossibleHere, Trial
from tfaccel.benchmarks.faults_suite import FAULT_FIGURES, ROWS, row_figures, run_faults_suite
from tfaccel.benchmarks.goodput import GOODPUT
from tfaccel.benchmarks.suite_options import SuiteOptions

QUICK = ("killed_while_saving", "broken_checkpoint")  # the others have a faster counterpart beside what they test
SCALES = {"killed_alone": 1.0}  # all moments; of the rows with many trials, the others have them in test_checkpoint.py
ONCE = """
import json, warnings
from tfaccel.benchmarks.faults_suite import run_faults_suite
from tfaccel.benchmarks.suite_options import SuiteOptions
warnings.filterwarnings("ignore", "`use_", DeprecationWarning)  # of Ray's own settings
report = run_faults_suite(["{0}"], SuiteOptions(repetitions=1, scale=0.01, progress=lambda line: None))
print(json.dumps(report.raw["{0}"]["trials"]))
"""


def not_called(lab, folder):
    raise NotPossibleHere("no such thing")


def test_figures_of_a_row():
    row = FaultRow("a fault", "a promise", not_called, notice_seconds=5.0)
    trials = [Trial(True, "", 1.0, 0.5), Trial(False, "what went wrong", None, 0.25)]
    right, noticed, ratio = row_figures("row", row, trials)
    assert (right.quantity, right.values, right.met) == ("a fault: a promise (fraction of 2)", (0.5,), False)
    assert (noticed.values, noticed.met) == ((1.0, float("inf")), False)
    assert ratio.values == (0.5, 0.25)


def done_once(name):
    lines = []
    report = run_faults_suite([name], SuiteOptions(repetitions=1, scale=SCALES.get(name, 0.01), progress=lines.append))
    assert lines
    if report.notes and "was not tried" in report.notes[0]:
        pytest.skip(report.notes[0])
    return report


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in ROWS if name not in QUICK)]
)
def test_row(name, run_python):
    if name == "lost_ray_node":  # Ray changes the environment of its process
        lines = run_python(ONCE.format(name), timeout_seconds=600).stdout.splitlines()
        trials = json.loads(lines[-1])
    else:
        trials = done_once(name).raw[name]["trials"]
    assert trials and all(trial["right"] for trial in trials), trials


@pytest.mark.slow
def test_run_with_kills_ends_as_if_nothing_had_happened():
    report = done_once(GOODPUT)
    assert [figure.name for figure in report.figures] == [GOODPUT] * 4
    assert report.figures[1].values == (1.0,), report.raw


def test_every_row_of_the_matrix_is_a_figure():
    assert {*FAULT_FIGURES} == {*ROWS, GOODPUT}
    assert all(row.fault and row.promise for row in ROWS.values())
