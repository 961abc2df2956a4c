"""The process that measures one plan: it trains in windows, as its parent orders over the connection.

It receives the task, reports what it has built, and answers each number of steps with a timed window, "cost" with what
a step computes, and "layer seconds" with the times of its layers.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

import tensorflow as tf

from tfaccel.errors import TfaccelError
from tfaccel.hardware.cpu import resident_bytes
from tfaccel.measuring.workload_task import OUT_OF_MEMORY, answered, load_task
from tfaccel.planning.plan import Plan
from tfaccel.training.run.timed_steps import TimedSteps
from tfaccel.training.runtime import Runtime

_KIB = 1024
_TRACED_STEPS = 5
_WATCH_SECONDS = 0.02


def main(connection: Connection, arguments: list[str]) -> int:
    """Measures until told to end; returns the exit status."""
    return answered(connection, _measure)


def _end_at(memory_limit_bytes: int, connection: Connection) -> None:
    """Ends this process as soon as its resident size exceeds the limit, before the machine runs out of memory."""

    def watch() -> None:
        while (resident := resident_bytes()) <= memory_limit_bytes:
            time.sleep(_WATCH_SECONDS)
        cause = f"{OUT_OF_MEMORY}: its resident size reached {resident:,} bytes; the limit is {memory_limit_bytes:,}."
        connection.send({"event": "failed", "cause": cause})
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _measure(connection: Connection, task: dict[str, Any]) -> None:
    started = time.perf_counter()
    if task.get("memory_limit_bytes"):
        _end_at(task["memory_limit_bytes"], connection)
    workload, plan, seed = load_task(task), Plan.from_json(task["plan"]), task["seed"]
    with Runtime(plan, seed=seed) as runtime:
        steps = TimedSteps(workload, plan, runtime.strategy, seed=seed, marks_layers=task["marks_layers"])
        depends = steps.what_depends_on_micro_batches() if plan.accumulation_steps > 1 else ""
        built = {
            "depends_on_micro_batches": depends,
            "num_parameters": steps.num_parameters,
            "kernels_need_float32": steps.kernels_need_float32,
            "vocabulary_size": steps.vocabulary_size,
        }
        connection.send({"event": "built", "seconds": time.perf_counter() - started, **built})
        while (order := connection.recv()) is not None:
            if order == "cost":
                answer = _cost(steps)
            elif order == "layer seconds":
                answer = {"seconds": steps.layer_seconds(_TRACED_STEPS)}
            else:
                answer = {**asdict(steps.window(order)), "peak_bytes": peak_bytes(plan)}
            connection.send({"event": "answer", **answer})
        steps.close()


def _cost(steps: TimedSteps) -> dict[str, Any]:
    try:
        return {"cost": steps.cost().to_json(), "uncounted": ""}
    except TfaccelError as error:
        return {"cost": None, "uncounted": str(error)}


def peak_bytes(plan: Plan) -> int:
    """The peak memory so far: of the devices if they are GPUs, otherwise of this process."""
    if plan.devices[0].startswith("GPU"):
        return max(int(tf.config.experimental.get_memory_info(name)["peak"]) for name in plan.devices)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB
