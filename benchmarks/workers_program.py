"""One worker of the benchmark of workers: trains a family in windows, and prints its times as JSON.

    python -m tfaccel.benchmarks.workers_program TASK

TASK is JSON: the family, plan fields, the number of windows and of steps in each, and `started`, the time at which the
launch began.
"""

from __future__ import annotations

import json
import os
import sys
import time

BEGAN = time.time()
CORES = "TFACCEL_BENCHMARK_CORES"


def main(argv: list[str]) -> int:
    """Trains, and prints the times of the windows and of the start; returns the exit status."""
    task = json.loads(argv[1])
    if os.environ.get(CORES):
        os.sched_setaffinity(0, {int(core) for core in os.environ[CORES].split(",")})
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tfaccel.planning.plan import Plan
    from tfaccel.planning.plan_environment import get_environment
    from tfaccel.processes.child import end_with_parent

    end_with_parent()
    plan = Plan.from_json(task["plan"])
    os.environ.update(get_environment(plan))
    import tensorflow  # noqa: F401

    from tfaccel.benchmarks.choice_tasks import workload
    from tfaccel.training.run.timed_steps import TimedSteps
    from tfaccel.training.runtime import Runtime

    imported = time.time()
    with Runtime(plan, seed=0) as runtime:
        connected = time.time()
        steps = TimedSteps(workload(task["family"]), plan, runtime.strategy, seed=0)
        built = time.time()
        steps.window(1)
        first = time.time()
        if task["num_windows"]:
            steps.window(task["num_steps"])
        windows = [steps.window(task["num_steps"]) for _ in range(task["num_windows"])]
        steps.close()
    found = {
        "examples_per_second": [one.num_steps * plan.global_batch_size / one.seconds for one in windows],
        "loss": windows[-1].loss if windows else None,
        "seconds": {
            "start of the process": BEGAN - task["started"],
            "imports": imported - BEGAN,
            "devices, meeting of the workers": connected - imported,
            "building the model": built - connected,
            "first step": first - built,
        },
    }
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
