"""The computational cost of a workload's training step, counted in the traced step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import keras
import tensorflow as tf

from tfaccel.costs.graph_operations import graph_operations
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.run.compiled_model import compiled_model
from tfaccel.training.run.workload_fit import build_for


@dataclass(frozen=True)
class StepCosts:
    """The cost of one training step, and the number of parameters.

    Args:
        operations: floating-point operations of the step's matrix products and convolutions, forward and backward; a
            multiply-add counts as two.
        num_parameters: number of trainable parameters.
    """

    operations: int
    num_parameters: int


def step_costs(workload: Workload, *, global_batch_size: int | None = None) -> StepCosts:
    """Builds the model of a workload, traces its training step, and counts the operations in the graph.

    Nothing is trained. Only one batch of the data is read.

    Args:
        workload: the workload.
        global_batch_size: examples per step; None for the workload's recommendation.

    Raises:
        WorkloadError: if the model does not accept the data, or a shape or the length of a loop depends on them.

    Example:
        >>> from tfaccel.recipes import image_classification
        >>> costs = step_costs(image_classification.workload())
        >>> f"{costs.operations:.1e}", costs.num_parameters
        ('8.1e+08', 77290)
    """
    batch_size = workload.global_batch_size if global_batch_size is None else global_batch_size
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=batch_size)
    batch = next(iter(workload.train_data(batch_size, seed=0, epoch=0)))
    spec = keras.tree.map_structure(lambda one: tf.TensorSpec((batch_size, *one.shape[1:]), one.dtype), batch)
    model = compiled_model(workload, plan, num_steps=1)
    build_for(model, spec, workload)
    step = tf.function(model.train_step, autograph=False).get_concrete_function(spec)
    num_parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    return StepCosts(graph_operations(step.graph), num_parameters)
