"""A process that trains on a Grain pipeline is killed and started again: the weights are those without the kill."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def ended(*arguments):
    command = [sys.executable, str(HERE / "grain_program.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "data")}
    child = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500, check=False)
    return child.returncode, child.stdout, child.stderr


@pytest.mark.parametrize(
    "runs",
    [
        ("train iter", "fit iter"),
        pytest.param(
            ("train map, repeated", "train loader", "train iter, random", "fit map", "fit loader"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_killed_run_ends_with_the_same_weights(runs, tmp_path):
    status, expected, errors = ended(tmp_path / "whole", "undisturbed", *runs)
    assert status == 0, errors
    for number in range(len(runs)):
        assert ended(tmp_path, "kills", *runs)[0] == -9
        assert len(list(tmp_path.glob("*.killed"))) == number + 1
    status, found, errors = ended(tmp_path, "kills", *runs)
    assert status == 0, errors
    assert json.loads(found) == json.loads(expected)
    assert "again" not in errors


def launched(folder, how, *, num_workers):
    """The status, what each worker ended with, and all lines."""
    program = [sys.executable, str(HERE / "grain_workers_program.py"), str(folder), how]
    launch = [sys.executable, "-m", "tfaccel.scripts.main", "launch", f"--num_workers={num_workers}"]
    command = program if num_workers == 1 else [*launch, f"--log_dir={folder}/logs", "--", *program]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "data")}
    child = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500, check=False)
    ends = [json.loads(line.partition("ended ")[2]) for line in child.stdout.splitlines() if "ended [" in line]
    return child.returncode, sorted(ends), child.stdout + child.stderr


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_workers_read_the_same_pipeline_and_take_their_own_rows(tmp_path):
    _, [(losses, _, num_workers)], _ = launched(tmp_path / "alone", "well", num_workers=1)
    assert num_workers == 1
    status, ends, lines = launched(tmp_path / "well", "well", num_workers=2)
    assert (status, [end[2] for end in ends]) == (0, [2, 2]), lines
    assert ends[0][0] == ends[1][0] == pytest.approx(losses, rel=1e-5)
    status, again, lines = launched(tmp_path / "killed", "killed", num_workers=2)
    assert (status, again) == (0, ends), lines
    assert "Worker 1 of 2 was killed by SIGKILL" in lines
    status, ends, lines = launched(tmp_path / "shards", "shards", num_workers=2)
    assert (status, ends) == (2, []), lines
    assert "on worker 1. Start all of them with the same" in lines
