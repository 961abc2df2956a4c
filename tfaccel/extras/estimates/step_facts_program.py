"""The process that builds the model of a workload, and traces its training step; `step_facts` starts it."""

from __future__ import annotations

import math
from multiprocessing.connection import Connection
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import TfaccelError
from tfaccel.measuring.workload_task import get_cause, load_task
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.run.session import built_model
from tfaccel.training.runtime import Runtime
from tfaccel.training.steps.engine import get_engine
from tfaccel.training.steps.marked_layers import train_step_cost, with_rows


def main(connection: Connection, arguments: list[str]) -> int:
    """Sends the facts, as `StepFacts` has them; returns the exit status."""
    task = connection.recv()
    try:
        connection.send(_facts(load_task(task), Plan.from_json(task["plan"]), seed=task["seed"]))
    except Exception as error:
        connection.send({"failed": get_cause(error)})
        return 1
    return 0


def _facts(workload: Workload, plan: Plan, *, seed: int) -> dict[str, Any]:
    size = plan.global_batch_size
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
