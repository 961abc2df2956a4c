"""The benchmark of `estimate_memory`: the estimate, and the peak that training takes, in a process each."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.hardware.detect import detect_hardware
from tfaccel.measuring.estimate_memory import estimate_of_plan
from tfaccel.planning.candidates import default_plan
from tfaccel.planning.load_workload import as_workload
from tfaccel.planning.plan import Plan
from tfaccel.processes.child import run_program

# Figure -> the workload, and fixed plan fields.
MEMORY_TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {"dtype_policy": "float32"}),
    "cnn": ("cnn", {"dtype_policy": "float32"}),
    "transformer": ("transformer", {"dtype_policy": "float32"}),
    "lstm": ("lstm", {"dtype_policy": "float32"}),
    "embedding": ("embedding", {"dtype_policy": "float32"}),
    "mlp_bfloat16": ("mlp", {"dtype_policy": "mixed_bfloat16"}),
    "cnn_bfloat16": ("cnn", {"dtype_policy": "mixed_bfloat16"}),
    "transformer_bfloat16": ("transformer", {"dtype_policy": "mixed_bfloat16"}),
    "transformer_recomputed": ("transformer", {"dtype_policy": "float32", "rematerialization": True}),
}
MAX_ERROR = 0.2
_LIMIT_SECONDS = 900.0


def run_memory_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Estimates and measures the memory of the named figures (keys of `MEMORY_TASKS`)."""
    figures: list[Figure] = []
    for name in names:
        task, fixed = MEMORY_TASKS[name]
        path = f"tfaccel.benchmarks.memory_tasks:{task}"
        plan = default_plan(detect_hardware(), as_workload(path), jit_compile=False, fused_kernels=False, **fixed)
        options.progress(f"{name}: estimate")
        estimate = estimate_of_plan(path, plan, detect_hardware())
        estimated = estimate.training_bytes[plan.replica_batch_size]
        measured = []
        for repetition in range(options.repetitions):
            options.progress(f"{name}: training, {repetition + 1} of {options.repetitions}")
            measured.append(_measured(path, plan))
        figures += [
            _figure(
                name, "|estimate - measured| / measured", [abs(estimated / one - 1) for one in measured], MAX_ERROR
            ),
            _figure(name, "estimate / measured", [estimated / one for one in measured]),
            _figure(name, "measured peak of training, MB", [one / 1e6 for one in measured]),
        ]
    return Report(suite="memory", machine=options.machine(), measurements={}, figures=tuple(figures))


def _measured(path: str, plan: Plan) -> int:
    task = json.dumps({"workload": path, "plan": plan.to_json()})
    command = [sys.executable, "-m", "tfaccel.benchmarks.memory_program", task]
    output = run_program(command, time_limit_seconds=_LIMIT_SECONDS)
    return int(json.loads(output.splitlines()[-1])["peak_training_bytes"])


def _figure(name: str, quantity: str, values: Sequence[float], at_most: float | None = None) -> Figure:
    return Figure(name=name, quantity=quantity, values=tuple(values), at_most=at_most)
