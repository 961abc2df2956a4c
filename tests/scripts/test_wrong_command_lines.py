"""Wrong command lines get one clear line and exit status 2, whatever is wrong, and leave nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import wrong_command_lines as program

# Commands that read their input without TensorFlow; of the lines of each, about twenty run by default.
QUICK = {
    "inspect-data": 3,
    "plan": 7,
    "train": 29,
    "compress": 11,
    "roofline": 9,
    "doctor": 5,
    "test": 3,
    "recipes": 1,
    "env": 1,
    "completion": 1,
    "estimate-scaling": 8,
    "report": 1,
}
MIN_LINES = 250


def outcomes(folder: Path, steps: dict[str, int]) -> list[list]:
    """What came of every `step`-th line of each command, all run by one child."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    child = subprocess.run(
        [sys.executable, program.__file__, str(folder), *(f"{command}={step}" for command, step in steps.items())],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
        env=environment,
    )
    assert child.returncode == 0, child.stderr[-3000:]
    return [json.loads(line) for line in child.stdout.splitlines()]


def faults(found: list[list]) -> list[str]:
    """What is wrong with the outcomes: the command line, and what it gave."""
    bad = []
    for command, arguments, status, out, err, changed, _ in found:
        is_one_line = err.startswith(f"tfaccel {command}") and err.count("\n") == 1 and len(err) > 30
        if status != 2 or out or not is_one_line or changed:
            bad.append(
                f"{command} {' '.join(arguments)[:200]}: {status}, {out[-200:]!r}, {err[-400:]!r}, {changed[:3]}"
            )
    return bad


@pytest.fixture(scope="module")
def some_outcomes(tmp_path_factory):
    return outcomes(tmp_path_factory.mktemp("files"), QUICK)


@pytest.mark.parametrize("command", QUICK)
def test_some_wrong_lines_get_one_line_and_status_2(command, some_outcomes):
    found = [outcome for outcome in some_outcomes if outcome[0] == command]
    assert len(found) >= min(5, len(list(program.lines(command))))
    assert faults(found) == []


@pytest.mark.slow
@pytest.mark.parametrize("command", program.commands())
def test_every_wrong_line_gets_one_line_and_status_2(command, tmp_path):
    assert faults(outcomes(tmp_path, {command: 1})) == []


def test_the_table_covers_every_command():
    from tfaccel.scripts.main import COMMANDS

    assert sorted(program.commands()) == sorted(COMMANDS)
    assert sum(len(list(program.lines(command))) for command in program.commands()) > MIN_LINES
