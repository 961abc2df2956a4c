"""The process that measures one plan: it trains in windows, as its parent orders over the connection.

It receives the task, reports what it has built, and answers each number of steps with a timed window, "cost" with what
a step computes, and "layer seconds" with the times of its layers.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import threading
import time
import traceback
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfaccel.errors import TfaccelError
from tfaccel.measuring.candidate_child import OUT_OF_MEMORY
from tfaccel.measuring.workload_task import load_task
from tfaccel.planning.plan import Plan
from tfaccel.planning.reference import Origin, Reference
from tfaccel.planning.workload import Workload

_KIB = 1024
_TRACED_STEPS = 5
_WATCH_SECONDS = 0.02


def main(connection: Connection, arguments: list[str]) -> int:
    """Measures until told to end; returns the exit status."""
    task = connection.recv()
    started = time.perf_counter()
    try:
        Origin(**task["origin"]).prepare()
        if task.get("memory_limit_bytes"):
            _end_at(task["memory_limit_bytes"], connection)
        workload = load_task(Reference(**task["workload"]), task["options"])
        plan = Plan.from_json(task["plan"])
        marks = bool(task.get("marks_layers"))
        _measure(connection, workload, plan, seed=task["seed"], started=started, marks_layers=marks)
    except Exception as error:
        traceback.print_exc()
        connection.send({"event": "failed", "cause": get_cause(error)})
        return 1
    return 0


def _end_at(memory_limit_bytes: int, connection: Connection) -> None:
    """Ends this process as soon as its resident size exceeds the limit, before the machine runs out of memory."""

    def watch() -> None:
        while (resident := resident_bytes()) <= memory_limit_bytes:
            time.sleep(_WATCH_SECONDS)
        cause = f"{OUT_OF_MEMORY}: its resident size reached {resident:,} bytes; the limit is {memory_limit_bytes:,}."
        connection.send({"event": "failed", "cause": cause})
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def resident_bytes() -> int:
    """The resident size of this process.

    Example:
        >>> resident_bytes() > 2**20
        True
    """
    found = re.search(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))
    return int(found[1]) * _KIB if found else 0


def _measure(
    connection: Connection, workload: Workload, plan: Plan, *, seed: int, started: float, marks_layers: bool
) -> None:
    from tfaccel.training.run.timed_steps import TimedSteps
    from tfaccel.training.runtime import Runtime

    with Runtime(plan, seed=seed) as runtime:
        steps = TimedSteps(workload, plan, runtime.strategy, seed=seed, marks_layers=marks_layers)
        depends = steps.what_depends_on_micro_batches() if plan.accumulation_steps > 1 else ""
        built = {"depends_on_micro_batches": depends, "num_parameters": steps.num_parameters}
        connection.send({"event": "built", "seconds": time.perf_counter() - started, **built})
        while (order := connection.recv()) is not None:
            if order == "cost":
                connection.send({"event": "cost", **_cost(steps)})
                continue
            if order == "layer seconds":
                connection.send({"event": "layer seconds", "seconds": steps.layer_seconds(_TRACED_STEPS)})
                continue
            window = steps.window(order)
            connection.send({"event": "window", **asdict(window), "peak_bytes": peak_bytes(plan)})
        steps.close()


def _cost(steps: Any) -> dict[str, Any]:
    try:
        return {"cost": steps.cost().to_json(), "uncounted": ""}
    except TfaccelError as error:
        return {"cost": None, "uncounted": str(error)}


def peak_bytes(plan: Plan) -> int:
    """The peak memory so far: of the devices if they are GPUs, otherwise of this process."""
    if plan.devices[0].startswith("GPU"):
        import tensorflow as tf

        return max(int(tf.config.experimental.get_memory_info(name)["peak"]) for name in plan.devices)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


def get_cause(error: Exception) -> str:
    """Why a plan could not be measured, in one line; it begins with `OUT_OF_MEMORY` if memory was short.

    Example:
        >>> get_cause(ValueError("two\\nlines")), get_cause(MemoryError())
        ('ValueError: lines', 'Out of memory: MemoryError')
    """
    if isinstance(error, TfaccelError):
        return str(error)
    lines = [line.strip() for line in str(getattr(error, "message", error)).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300].rstrip(": ")
    return f"{OUT_OF_MEMORY}: {text}" if _is_out_of_memory(error) else text


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError) or "tensorflow" not in sys.modules:
        return isinstance(error, MemoryError)
    from tfaccel.training.run.out_of_memory import is_out_of_memory

    return is_out_of_memory(error)
