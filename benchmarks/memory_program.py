"""Trains some steps of a workload, and reports how far the peak resident size exceeds that before the model is built.

    python -m tfaccel.benchmarks.memory_program '{"workload": "tfaccel.benchmarks.memory_tasks:mlp", "plan": {...}}'

It writes the number of bytes on standard output, as JSON.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from tfaccel.hardware.cpu import resident_bytes
from tfaccel.planning.load_workload import as_workload
from tfaccel.planning.plan import Plan
from tfaccel.training.run.timed_steps import TimedSteps
from tfaccel.training.runtime import Runtime

_NUM_CALLS, _STEPS_PER_CALL = 4, 2
_RESET_PEAK = "5"  # https://man7.org/linux/man-pages/man5/proc_pid_clear_refs.5.html


def peak_training_bytes(work: str, plan: Plan) -> int:
    """The peak resident size while training, minus the resident size once the data have been read."""
    workload = as_workload(work)
    with Runtime(plan, seed=0) as runtime:
        next(iter(workload.train_data(plan.global_batch_size, seed=0, epoch=0)))
        before = resident_bytes()
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        steps = TimedSteps(workload, plan, runtime.strategy, seed=0)
        for _ in range(_NUM_CALLS):
            steps.window(_STEPS_PER_CALL)
        steps.close()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found: Any = re.search(r"VmHWM:\s+(\d+)", status)
    return int(found[1]) * 1024 - before


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    found = peak_training_bytes(task["workload"], Plan.from_json(task["plan"]))
    sys.stdout.write(json.dumps({"peak_training_bytes": found}) + "\n")
