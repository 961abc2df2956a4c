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
