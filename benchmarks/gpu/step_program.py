"""The process of one step of the GPU suite. It writes the step's file as it goes.

    python -m tfaccel.benchmarks.gpu.step_program '{"name": "env", "about": "...", "function": "..."}' FOLDER

The suite has written a file with the status "running" to the folder; this program replaces it with what it finds, and
at last with the status "done" or "failed". It ends with its parent.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.gpu.step import Step, StepRun
from tfaccel.benchmarks.gpu.step_result import StepResult
from tfaccel.measuring.workload_task import get_cause
from tfaccel.processes.child import end_with_parent


def run_step(step: Step, out: Path) -> StepResult:
    """Runs a step whose empty result is in the folder; returns the final one, which it has written."""
    begun = StepResult.load(out, step.name)
    if begun is None:
        raise FileNotFoundError(f"{out / step.name}.json")
    started = time.perf_counter()
    run = StepRun(begun, out, progress=_say, limit_seconds=step.limit_seconds)
    status, cause = "done", ""
    try:
        _function(step.function)(run, **step.arguments)
    except Exception as error:
        traceback.print_exc()
        status, cause = "failed", get_cause(error)
    final = replace(run.result, status=status, cause=cause, seconds=round(time.perf_counter() - started, 3))
    final.save(out)
    return final


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _function(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(0 if run_step(Step(**json.loads(sys.argv[1])), Path(sys.argv[2])).status == "done" else 1)
