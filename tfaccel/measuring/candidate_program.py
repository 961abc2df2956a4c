"""The process that measures one plan: it trains in windows, as its parent orders over the connection.

It receives the task, reports what it has built, and answers each number of steps with a timed window.
"""

from __future__ import annotations

import resource
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from tfaccel.errors import TfaccelError
from tfaccel.planning.load_workload import as_workload
from tfaccel.planning.plan import Plan
from tfaccel.planning.reference import Origin, Reference
from tfaccel.planning.workload import Workload

_KIB = 1024


def main(connection: Connection, arguments: list[str]) -> int:
    """Measures until told to end; returns the exit status."""
    task = connection.recv()
    started = time.perf_counter()
    try:
        Origin(**task["origin"]).prepare()
        workload = load_task(Reference(**task["workload"]), task["options"])
        plan = Plan.from_json(task["plan"])
        _measure(connection, workload, plan, seed=task["seed"], started=started)
    except Exception as error:
        traceback.print_exc()
        connection.send({"event": "failed", "cause": cause_of(error)})
        return 1
    return 0


def load_task(reference: Reference, options: dict[str, Any]) -> Workload:
    """The workload that a parent refers to, made with these options."""
    if reference.kind in ("recipe", "import"):
        return as_workload(reference.import_path(), **options)
    return as_workload(reference.load(), **options)


def _measure(connection: Connection, workload: Workload, plan: Plan, *, seed: int, started: float) -> None:
    from tfaccel.training.run.timed_steps import TimedSteps
    from tfaccel.training.runtime import Runtime

    with Runtime(plan, seed=seed) as runtime:
        steps = TimedSteps(workload, plan, runtime.strategy, seed=seed)
        built = {"batch_norm_layers": steps.batch_norm_layers, "num_parameters": steps.num_parameters}
        connection.send({"event": "built", "seconds": time.perf_counter() - started, **built})
        while (num_steps := connection.recv()) is not None:
            window = steps.window(num_steps)
            connection.send(
                {
                    "event": "window",
                    "seconds": window.seconds,
                    "num_steps": window.num_steps,
                    "loss": window.loss,
                    "peak_bytes": peak_bytes(plan),
                }
            )
        steps.close()


def peak_bytes(plan: Plan) -> int:
    """The peak memory so far: of the devices if they are GPUs, otherwise of this process."""
    if plan.devices[0].startswith("GPU"):
        import tensorflow as tf

        return max(int(tf.config.experimental.get_memory_info(name)["peak"]) for name in plan.devices)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def cause_of(error: Exception) -> str:
    """Why a plan could not be measured, in one line."""
    if isinstance(error, TfaccelError):
        return str(error)
    lines = [line.strip() for line in str(getattr(error, "message", error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300].rstrip(": ")
