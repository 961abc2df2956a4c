"""Two workers that are killed give the same bits when restarted, and equal results when one worker continues."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tfaccel.processes.local_cluster import WorkerError, run_local_cluster

HERE = Path(__file__).parent


def outcomes(run_dir, die_at="never"):
    """The outcome on each of two workers."""
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import train_workload; train_workload.once(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(run_dir), "workers_2", die_at]
    workers = run_local_cluster(command, num_workers=2, time_limit_seconds=200)
    return [json.loads(worker.stdout.splitlines()[-1]) for worker in workers]


@pytest.mark.slow
def test_resumed_workers_end_as_if_never_stopped(tmp_path):
    with pytest.raises(WorkerError, match="status 7"):
        outcomes(tmp_path / "run", "1.5")
    left = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    resumed = outcomes(tmp_path / "run")
    whole = outcomes(tmp_path / "whole")
    newest = [name for name in left if not name.startswith(".")][-1]
    assert newest in ("step_0000000014", "step_0000000016")  # written, or being written
    assert resumed[0] == resumed[1]
    assert whole[0] == whole[1]
    assert resumed[0] == whole[0]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(len(lines)))
    assert len(lines) > 2


def check_same_batches(found, whole):
    """The losses of all epochs, and the weights, are equal within rounding: every step had the same global batch."""
    for ended, expected in zip(found, whole, strict=True):
        np.testing.assert_allclose(ended, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_other_number_of_replicas_continues_with_the_same_batches(run_python):
    changes = ("mirrored_2 none", "none mirrored_2")
    code = f"from changed_workers import main\nmain(*{changes!r})"
    found = json.loads(run_python(code, env={"PYTHONPATH": str(HERE)}).stdout.splitlines()[-1])
    assert set(found) == {"whole", *changes}
    for change in changes:
        check_same_batches(found[change], found["whole"])


def changed(run_dir, placement, *stop_at):
    """The outcomes on one or two workers."""
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import changed_workers; changed_workers.once(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(run_dir), placement, *stop_at]
    if placement == "workers_2":
        workers = run_local_cluster(command, num_workers=2, time_limit_seconds=300)
        return [json.loads(worker.stdout.splitlines()[-1]) for worker in workers]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return [json.loads(ended.stdout.splitlines()[-1])] if ended.returncode == 0 else []


@pytest.mark.slow
def test_two_workers_continue_as_one_and_one_as_two(tmp_path):
    [whole] = changed(tmp_path / "whole", "none")
    with pytest.raises(WorkerError, match="status 7"):
        changed(tmp_path / "two", "workers_2", "1.3")
    [as_one] = changed(tmp_path / "two", "none")
    check_same_batches(as_one, whole)
    assert changed(tmp_path / "one", "none", "1.3") == []
    as_two = changed(tmp_path / "one", "workers_2")
    assert as_two[0] == as_two[1]
    check_same_batches(as_two[0], whole)
