"""The benchmark of searches compares the same trials only, and takes a trial's overhead from its epochs' time."""

import json

import pytest

from tfaccel.benchmarks import search_suite
from tfaccel.benchmarks.report import Report
from tfaccel.errors import TfaccelError


def test_other_trials_are_refused():
    ours = {"rows": [{"trial_id": "00", "hyperparameters": {"rate": 0.1}}]}
    search_suite._check_same_trials({"trials": {"00": {"rate": 0.1}}}, ours)
    with pytest.raises(TfaccelError, match=r"Trial 00 is {'rate': 0.1} here and {'rate': 0.2} with Keras Tuner"):
        search_suite._check_same_trials({"trials": {"00": {"rate": 0.2}}}, ours)


@pytest.mark.slow
def test_short_run_of_a_search(run_python):
    options = ["--json", "--repetitions=1", "--scale=0.06", "--figures=image_classification"]
    done = run_python("tfaccel.scripts.benchmark", "search", *options, check=False, timeout_seconds=500)
    report = Report.from_json(json.loads(done.stdout))
    found = {figure.quantity: figure for figure in report.figures}
    best = [found[f"best score, {program}"].median for program in ("Keras Tuner", "tfaccel search")]
    assert best[0] > 0.9
    assert abs(best[0] - best[1]) < 0.05
    assert found["overhead of a trial / its epochs"].median > 0
    assert len(report.measurements["image_classification"]) == 2
