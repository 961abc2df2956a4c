"""Chooses a plan for a family with `tfaccel.find_fastest`, twice, and times both calls.

    python -m tfaccel.benchmarks.search_program \
        '{"family": "mlp", "max_candidates": 12, "budget_seconds": null, "after": "cnn"}'

The first call measures, unless the plan is kept in `TFACCEL_CACHE`; the second one reads it. If "after" names a family,
its plan is chosen before, in the same cache. The program writes both times and the report to standard output, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace

from tfaccel.benchmarks.choice_tasks import WORKLOAD
from tfaccel.measuring.find_fastest import find_fastest
from tfaccel.measuring.plan_search import MeasureOptions


def main(argv: list[str]) -> int:
    """Searches; returns the exit status."""
    task = json.loads(argv[0])
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    measure = MeasureOptions(
        for_new_process=True, max_candidates=task["max_candidates"], budget_seconds=task["budget_seconds"]
    )
    if task["after"]:
        find_fastest(WORKLOAD, measure=measure, family=task["after"])
    clock, reports = [time.perf_counter()], []
    for _ in range(2):
        reports.append(find_fastest(WORKLOAD, measure=measure, family=task["family"]))
        clock.append(time.perf_counter())
    seconds = {"seconds": clock[1] - clock[0], "cached_seconds": clock[2] - clock[1]}
    # The cache may be a temporary folder.
    found = {**seconds, "report": replace(reports[0], kept_in=None).to_json()}
    output.write(json.dumps(found))
    output.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
