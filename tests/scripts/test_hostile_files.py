"""Hostile files are refused by every command with one line and exit status 2, before code runs or a file is written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("hostile_files.py")
EVERY = 8  # line of the table is run by default; `compress` and a second look at complete runs take longest


def faults(folder, step, pattern):
    """What is wrong with the outcomes, and the number of command lines."""
    folder.mkdir()
    command = [sys.executable, str(PROGRAM), str(folder), str(step), pattern]
    child = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert child.returncode == 0, child.stderr[-3000:]
    outcomes = [json.loads(line) for line in child.stdout.splitlines()]
    bad = []
    for line, status, out, err, new, ran in outcomes:
        is_one_line = err.startswith(f"tfaccel {line[0]}: ") and err.count("\n") == 1
        if status != 2 or out or not is_one_line or new or ran:
            bad.append(f"{' '.join(line)}: {status}, {out[-200:]!r}, {err[-400:]!r}, {new[:3]}, ran: {ran}")
    return bad, len(outcomes)


def test_hostile_files_are_refused(tmp_path):
    bad, count = faults(tmp_path / "files", EVERY, "^(?!compress)")
    assert not bad, "\n".join(bad)
    assert count >= 8


@pytest.mark.slow
def test_every_hostile_file_is_refused_by_every_command(tmp_path):
    bad, count = faults(tmp_path / "files", 1, "")
    assert not bad, "\n".join(bad)
    assert count == 9 * 7 + 2 * 4 + 8
