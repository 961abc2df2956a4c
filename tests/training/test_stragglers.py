"""A worker that the others wait for is found and named, with what it is slow in; measuring that changes no number."""

import json
import sys
from pathlib import Path

import pytest

from tfaccel.processes.local_cluster import run_local_cluster
from tfaccel.training.run.performance import WorkerTimes, straggler

HERE = Path(__file__).parent


def times(compute, wait=0.0, reduce=0.0):
    return WorkerTimes(wait, compute, reduce)


@pytest.mark.parametrize(
    ("workers", "worker", "phase"),
    [
        ([times(0.05, reduce=0.04), times(0.05, wait=0.04)], 1, "input"),
        ([times(0.09), times(0.05, reduce=0.04)], 0, "compute"),
        ([times(0.05, reduce=0.04), times(0.05, reduce=0.04), times(0.07, wait=0.02)], 2, "compute"),
        ([times(0.05, reduce=0.01), times(0.055)], None, None),  # within the usual
        ([times(0.001, reduce=0.1), times(0.003, reduce=0.1)], None, None),  # the network takes most of the time
        ([times(0.05)], None, None),
        ([], None, None),
    ],
)
def test_slow_worker_is_told_from_its_times(workers, worker, phase):
    found = straggler(workers)
    assert (worker, phase) == ((None, None) if found is None else (found.worker, found.phase))


def test_straggler_names_worker_phase_and_times():
    found = straggler([times(0.05, reduce=0.04), times(0.05, wait=0.04)])
    assert found.text == (
        "worker 1 takes 1.8 times as long as the others, which wait for it: it spends 40.0 ms per batch waiting for "
        "its input, the others 0.0 ms; look at its disk and network, and at what else reads or uses its CPU cores"
    )


def of_workers(folder, slow):
    """What each of two workers prints."""
    found = "from straggler_program import main; main(*sys.argv[1:])"
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); {found}"
    command = [sys.executable, "-c", code, str(folder), slow]
    workers = run_local_cluster(command, num_workers=2, time_limit_seconds=300)
    return [json.loads(worker.stdout.splitlines()[-1]) for worker in workers], workers[0].stderr


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["input", "compute"])
def test_slow_worker_is_named(tmp_path, slow):
    (chief, other), stderr = of_workers(tmp_path, slow)
    assert chief["bottleneck"] == other["bottleneck"]
    assert chief["bottleneck"]["kind"] == "straggler"
    assert (chief["straggler"]["worker"], chief["straggler"]["phase"]) == (1, slow)
    assert "Straggler: worker 1 takes" in stderr
    assert [len(row) for row in chief["rows"]] == [2] * 4
    assert all(set(one) == {"input", "compute", "reduce"} for row in chief["rows"] for one in row)
    assert chief["rows"][-1][0]["reduce"] > chief["rows"][-1][1]["reduce"]  # worker 0 waits


@pytest.mark.slow
def test_measuring_changes_no_number(tmp_path):
    timed, untimed = (of_workers(tmp_path, slow)[0] for slow in ("neither", "untimed"))
    assert timed[0]["workers"] == 2
    for one, other in zip(timed, untimed, strict=True):
        assert (one["weights"], one["history"]) == (other["weights"], other["history"])
