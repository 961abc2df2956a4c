"""The process that builds the model of a workload, and traces its training step; `step_facts` starts it."""

from __future__ import annotations

import math
from multiprocessing.connection import Connection
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import TfaccelError
from tfaccel.measuring.workload_task import answered, load_task
from tfaccel.planning.plan import Plan
from tfaccel.training.run.session import built_model
from tfaccel.training.runtime import Runtime
from tfaccel.training.steps.engine import get_engine
from tfaccel.training.steps.marked_layers import train_step_cost, with_rows


def main(connection: Connection, arguments: list[str]) -> int:
    """Sends the facts, as `StepFacts` has them; returns the exit status."""
    return answered(connection, _send_facts)


def _send_facts(connection: Connection, task: dict[str, Any]) -> None:
    workload, plan, seed = load_task(task), Plan.from_json(task["plan"]), task["seed"]
    size = plan.global_batch_size
    with Runtime(plan, seed=seed):
        batch = next(iter(workload.train_data(size, seed=seed, epoch=0)))
        spec = with_rows(keras.tree.map_structure(tf.TensorSpec.from_tensor, batch), size)
        model = built_model(workload, plan, spec)
        facts: dict[str, Any] = {
            "gradient_bytes": [math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in model.trainable_variables],
            "batch_bytes": sum(
                math.prod(1 if length is None else length for length in one.shape) * one.dtype.size
                for one in keras.tree.flatten(spec)
            ),
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
    connection.send({"event": "counted", "facts": facts})
