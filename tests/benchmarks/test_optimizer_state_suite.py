"""The benchmark of the optimizer state: its figures, and one of them measured."""

import pytest

from tfaccel.benchmarks import optimizer_state_suite
from tfaccel.benchmarks.optimizer_state_suite import run_optimizer_state_suite
from tfaccel.benchmarks.suite_options import SuiteOptions


def runs(how, peaks, seconds, digest="a"):
    """What two workers report."""
    return [
        {"runs": {how: {"peak_bytes": peak, "step_seconds": [9.0, seconds, seconds]}}, "digest": digest}
        for peak in peaks
    ]


def test_each_worker_is_compared_with_itself():
    one = {"replicated": runs("replicated", (100, 200), 1.0), "sharded": runs("sharded", (84, 150), 0.5)}
    other = {"replicated": runs("replicated", (100, 200), 1.0), "sharded": runs("sharded", (80, 150), 2.0, "b")}
    peak, time, same = optimizer_state_suite._worker_figures("workers", [one, other])
    assert (peak.values, peak.met) == ((0.84, 0.8), True)
    assert (time.values, time.met) == ((0.5, 2.0), False)
    assert (same.values, same.met) == ((1.0, 0.0), False)


@pytest.mark.slow
def test_weights_are_compared():
    report = run_optimizer_state_suite(["weights"], SuiteOptions(repetitions=1, progress=lambda text: None))
    assert len(report.figures) == 12
    assert report.met
