"""`find_fastest` for a workload of fastest_cases, in a process of its own."""

import json
from pathlib import Path

from tfaccel.measuring.report import Report

HERE = Path(__file__).parent
PROGRAM = """
import dataclasses, json, sys
import tfaccel
from tfaccel import find_fastest
from tfaccel.errors import TfaccelError
from tfaccel.measuring.report import MeasureOptions, SearchProgress

class Printed(SearchProgress):
    def measured(self, candidate):
        print(candidate.axis, flush=True)

options = json.loads(sys.argv[4])
limits = {"limit_seconds": float(sys.argv[2]), "budget_seconds": json.loads(sys.argv[3])}
if "hardware" in options:  # fields that differ from this machine's
    options["hardware"] = dataclasses.replace(tfaccel.detect_hardware(), **options["hardware"])
measure = MeasureOptions(**limits, **options.pop("measure", {}))
seen = []
try:
    report = find_fastest(f"fastest_cases:{sys.argv[1]}", measure=measure, progress=Printed(), **options)
    print(json.dumps(report.to_json()))
except TfaccelError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


def finder(run_python, cache):
    """A function that searches for the fastest plan of a case: the report, or the error's type and message."""

    def find(case, *, limit_seconds=60, budget_seconds=300, env=None, **options):
        arguments = (case, limit_seconds, json.dumps(budget_seconds), json.dumps(options))
        environment = {"TFACCEL_CACHE": str(cache), **(env or {})}
        child = run_python(PROGRAM, *arguments, cwd=HERE, env=environment, fresh=True)
        found = json.loads(child.stdout.splitlines()[-1])
        return Report.from_json(found) if isinstance(found, dict) else found

    return find
