"""Runs parity cases in a process of its own, so that a test can wait for the row of its case while others still run."""

import contextlib
import json
import subprocess
import sys

import pytest

from tfaccel.parity.case import ParityRow

PROGRAM = """
import json, sys
from tfaccel.parity.case import case_from_json
from tfaccel.parity.run_cases import run_cases

cases = [case_from_json(data) for data in json.loads(sys.stdin.read())]
run_cases(
    cases,
    on_row=lambda row: print(json.dumps(row.to_json()), flush=True),
    reference_dir=sys.argv[1],
    interpreter_options=sys.argv[2:],
)
"""


class ParityRuns:
    """The rows of cases, in the order in which they get done."""

    def __init__(self, cases, interpreter_options, *, reference_dir):
        self._rows = {}
        self._stack = contextlib.ExitStack()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(reference_dir), *interpreter_options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.enter_context(self._process.stdout)
        self._stack.callback(self._process.wait)
        self._stack.callback(self._process.kill)
        with self._process.stdin as stdin:
            stdin.write(json.dumps([case.to_json() for case in cases]))

    def row(self, case):
        """Waits for the row of a case."""
        wanted = (case.name, str(case.placement))
        while wanted not in self._rows:
            line = self._process.stdout.readline()
            if not line:
                pytest.fail(f"the runs ended without a row for {wanted}", pytrace=False)
            row = ParityRow.from_json(json.loads(line))
            self._rows[row.case, row.strategy] = row
        return self._rows[wanted]

    def end(self):
        """Ends whatever still runs; the processes below end with their standard input."""
        self._stack.close()


def selected_cases(session, name):
    """The cases of all tests called `name` that are going to run."""
    return [item.callspec.params["case"] for item in session.items if item.originalname == name]


def assert_right(row):
    """Fails with what differs most."""
    if not row.ok:
        pytest.fail(f"{row.strategy}: {row.case}: {row.max_abs_diff} > {row.tolerance}: {row.note}", pytrace=False)
