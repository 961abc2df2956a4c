"""What a training step of a workload calculates, counted from the step that is traced."""

from __future__ import annotations

import math
from dataclasses import dataclass

import keras
import tensorflow as tf

from tfaccel.measuring.graph_operations import graph_operations
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.compiled_model import compiled_model
from tfaccel.training.workload_fit import build_for


@dataclass(frozen=True)
class StepCosts:
    """What one training step calculates, and what it learns.

    Args:
        operations: floating-point operations of the step's matrix products and convolutions, forward and backward; a
            multiplication and the addition that follows it are two.
        num_parameters: trainable numbers.
    """

    operations: int
    num_parameters: int


def step_costs(workload: Workload, *, global_batch_size: int | None = None) -> StepCosts:
    """Builds the model of a workload, traces its training step, and counts the operations in the graph.

    Nothing is trained. The data are asked for one batch.

    Args:
        workload: whose step.
        global_batch_size: examples of the step; None for as many as the workload recommends.

    Raises:
        WorkloadError: if the model does not take the data, or a shape or the length of a loop depends on them.

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
