"""The benchmark of workers: its figures from made-up rates, and a real run on a small scale."""

import os
import sys

import pytest

from tfaccel.benchmarks import workers_suite
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.benchmarks.workers_suite import arrangements, run_workers_suite
from tfaccel.errors import TfaccelError


def test_arrangements_use_the_same_two_cores():
    one, two, replicas = arrangements(3, 5)
    assert (one.cores, two.cores, replicas.cores) == (((3, 5),), ((3,), (5,)), ((3, 5),))
    assert (two.fields["num_workers"], len(replicas.fields["devices"])) == (2, 2)


def test_figures_are_ratios_of_runs_in_turn():
    weak = workers_suite._weak_figures({"one": [10.0, 20.0], "two": [18.0, 30.0]})
    assert [(one.values, one.met) for one in weak] == [((1.8, 1.5), False)]
    two, replicas = workers_suite._arranged_figures("mlp", {"a": [10.0], "b": [5.0], "c": [20.0]})
    assert (two.quantity, two.values, replicas.values) == ("examples/s of b / a, same global batch", (0.5,), (2.0,))
    ratio, *parts = workers_suite._start_figures({"1": [{"x": 1.0, "y": 3.0}], "2": [{"x": 2.0, "y": 3.0}]})
    assert (ratio.values, ratio.met) == ((1.25,), True)
    assert [(one.quantity, one.values) for one in parts][2] == ("2 worker(s), seconds of: x", (2.0,))


def test_one_core_is_refused(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    with pytest.raises(TfaccelError, match="The benchmark of workers needs two cores"):
        run_workers_suite(["weak"], SuiteOptions(repetitions=1, progress=lambda text: None))


def test_without_ray_its_figures_are_left_out_with_a_line(monkeypatch):
    said = []
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    report = run_workers_suite(["ray"], SuiteOptions(repetitions=1, progress=said.append))
    assert report.figures == ()
    assert said == ["ray: left out, since Ray is not installed: pip install 'tfaccel[ray]'"]


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_real_workers_are_measured():
    options = SuiteOptions(repetitions=1, scale=0.02, progress=lambda text: None)
    report = run_workers_suite(["weak", "mlp", "start"], options)
    assert [figure.name for figure in report.figures[:4]] == ["weak", "mlp", "mlp", "start"]
    assert all(value > 0 for figure in report.figures for value in figure.values)
    assert set(report.raw["mlp"]) == {one.name for one in arrangements(0, 1)}
