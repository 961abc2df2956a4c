"""Step of the GPU suite about compiling: the first call of training with and without compiled programs on disk."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from tfaccel.benchmarks.gpu.step import StepRun
from tfaccel.benchmarks.gpu.tasks import workload
from tfaccel.benchmarks.gpu.trial import in_new_process
from tfaccel.files import CACHE_VARIABLE
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.plan import Plan

_NUM_FILLED = 1
_NUM_STEPS = 4


def first_call(run: StepRun, task: str) -> None:
    """Trains a few steps with the plan of the rules, in new processes that keep compiled programs in one folder."""
    options = {"task": task, "is_tiny": run.is_rehearsal}
    plan = default_plan(run.hardware, workload(**options), **run.one_device)
    found = []
    with tempfile.TemporaryDirectory(prefix="tfaccel-") as folder:
        for number in range(1 + _NUM_FILLED):
            run.progress(f"first call, compiled programs: {'kept' if number else 'none'}")
            found.append(
                in_new_process(
                    f"{__name__}:timed_first_call",
                    {"plan": plan.to_json(), "options": options},
                    limit_seconds=run.seconds_left,
                    environment={CACHE_VARIABLE: folder, "TF_XLA_FLAGS": None},
                )
            )
            run.record("first calls", found)
    first, *filled = found
    run.figure(f"{task}, first call", "seconds, no compiled programs", [first["seconds"]])
    run.figure(f"{task}, first call", "seconds, compiled programs kept", [one["seconds"] for one in filled])
    run.figure(f"{task}, first call", "MiB of compiled programs", [first["bytes"] / 2**20])
    # Kernels that sum in no fixed order make losses of two processes differ in their last bits.
    losses = [abs(one["loss"] / first["loss"] - 1) for one in filled]
    run.figure(f"{task}, first call", "relative difference of the loss", losses, at_most=0.01)


def timed_first_call(plan: dict[str, Any], options: dict[str, Any]) -> dict[str, float]:
    """The seconds until a few steps have run, in a process of its own; the loss, and the size of what is kept."""
    from tfaccel.training.run.timed_steps import TimedSteps
    from tfaccel.training.runtime import Runtime

    given = Plan.from_json(plan)
    started = time.perf_counter()
    with Runtime(given, seed=0) as runtime:
        steps = TimedSteps(workload(**options), given, runtime.strategy, seed=0)
        ready = time.perf_counter()
        window = steps.window(_NUM_STEPS)
        ended = time.perf_counter()
        steps.close()
    size = sum(file.stat().st_size for file in Path(os.environ[CACHE_VARIABLE]).rglob("*.pb.*"))
    return {"setup_seconds": ready - started, "seconds": ended - ready, "loss": float(window.loss), "bytes": size}
