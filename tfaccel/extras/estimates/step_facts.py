"""What a training step of a workload computes and moves, from its traced graph, in a process of its own."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfaccel.errors import TfaccelError, WorkloadError
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.processes.fork_server import ForkServer

_PROGRAM = "tfaccel.extras.estimates.step_facts"
_PRELOADED = (_PROGRAM, "tfaccel.costs.graph_costs", "tfaccel.training.run.session")


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """What one training step computes and moves.

    Args:
        gradient_bytes: of each gradient, in the order of the trainable weights.
        batch_bytes: of a batch, as it is copied to a device.
        operations: floating-point operations of matrix products and convolutions; None if they cannot be counted.
        num_kernels: operations that a device launches; None as above.
        moved_bytes: bytes that they read and write; None as above.
        uncounted: why they cannot be counted; empty if they can.
    """

    gradient_bytes: tuple[int, ...]
    batch_bytes: int
    operations: int | None = None
    num_kernels: int | None = None
    moved_bytes: int | None = None
    uncounted: str = ""


def step_facts(task: Mapping[str, Any], plan: Plan, *, limit_seconds: float) -> StepFacts:
    """Builds the model of a task's workload in a child process, and traces its training step.

    Args:
        task: see `tfaccel.measuring.workload_task.make_task`.
        plan: its dtype policy and batch size are used; the step is that of one CPU.
        limit_seconds: time limit.

    Raises:
        WorkloadError: if the model cannot be built, or that takes longer.
    """
    folder = Path(tempfile.mkdtemp(prefix="tfaccel-"))
    server = ForkServer(_PRELOADED, folder=folder, environment={"TF_CONFIG": None, "KERAS_BACKEND": "tensorflow"})
    try:
        child = server.start("step-facts", _PROGRAM, [], {})
        child.send({**task, "plan": plan.to_json()})
        try:
            answer = server.get_message(child, limit_seconds)
        except TimeoutError:
            text = f"The model could not be built: the process took longer than {limit_seconds:g} seconds."
            raise WorkloadError(text) from None
        if answer is None:
            how = f"{child.how_it_ended()}. {server.end_of_log(child)}"
            raise WorkloadError(f"The model could not be built: the process {how}"[:500])
        if "failed" in answer:
            raise WorkloadError(f"The model could not be built: {answer['failed']}")
        return StepFacts(**answer)
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)


def main(connection: Connection, arguments: list[str]) -> int:
    """The child process; returns its exit status."""
    from tfaccel.measuring.candidate_program import get_cause
    from tfaccel.measuring.workload_task import load_task
    from tfaccel.planning.reference import Origin, Reference

    task = connection.recv()
    try:
        Origin(**task["origin"]).prepare()
        workload = load_task(Reference(**task["workload"]), task["options"])
        connection.send(_facts(workload, Plan.from_json(task["plan"]), seed=task["seed"]))
    except Exception as error:
        connection.send({"failed": get_cause(error)})
        return 1
    return 0


def _facts(workload: Workload, given: Plan, *, seed: int) -> dict[str, Any]:
    import keras
    import tensorflow as tf

    from tfaccel.training.run.session import built_model
    from tfaccel.training.runtime import Runtime
    from tfaccel.training.steps.engine import get_engine
    from tfaccel.training.steps.marked_layers import train_step_cost, with_rows

    size = given.replica_batch_size
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=size, dtype_policy=given.dtype_policy)
    with Runtime(plan, seed=seed):
        batch = next(iter(workload.train_data(size, seed=seed, epoch=0)))
        spec = with_rows(keras.tree.map_structure(tf.TensorSpec.from_tensor, batch), size)
        model = built_model(workload, plan, spec)
        facts: dict[str, Any] = {
            "gradient_bytes": [math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in model.trainable_variables],
            "batch_bytes": sum(_batch_bytes(one) for one in keras.tree.flatten(spec)),
        }
        try:
            cost = train_step_cost(get_engine(model), spec, rows=size)
            facts |= {
                "operations": cost.matrix_flops,
                "num_kernels": cost.num_kernels,
                "moved_bytes": cost.bytes_accessed,
            }
        except TfaccelError as error:
            facts["uncounted"] = str(error)
    return facts


def _batch_bytes(spec: Any) -> int:
    shape = [1 if size is None else size for size in spec.shape.as_list()]
    return math.prod(shape) * spec.dtype.size
