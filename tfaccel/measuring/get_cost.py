"""`get_cost`: what a model computes, counted from its traced graph."""

from __future__ import annotations

import inspect
import math
from typing import Any

import keras
import tensorflow as tf

from tfaccel.costs.model_cost import ModelCost
from tfaccel.errors import WorkloadError
from tfaccel.planning.compile_arguments import data_after_model
from tfaccel.planning.load_workload import given_workload
from tfaccel.planning.option_checks import check_counts
from tfaccel.planning.own_model import RebuiltModel
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.run.session import built_model
from tfaccel.training.steps.engine import get_engine
from tfaccel.training.steps.marked_layers import forward_cost, train_step_cost, with_rows


@data_after_model
def get_cost(
    workload: Any, x: Any = None, y: Any = None, *, replica_batch_size: int | None = None, **options: Any
) -> ModelCost:
    """Counts the operations and bytes of a forward pass and of a training step, overall and by layer.

    The model may be of any kind: functional, subclassed, with loops, or with a `train_step` of its own. Its graph is
    traced, without XLA and without fused kernels, in the current dtype policy, and nothing is trained. A loop counts
    as often as it runs, and of several branches the most expensive one. Operations of a layer and of its gradients
    count for the innermost layer whose `call` they are in; what is in no layer is in the rows "optimizer", "loss" and
    "other". No row is left out.

    Args:
        workload: a Keras model, or a function that builds one; or a `Workload`, a recipe's name or an import path.
        x, y: data for the model, as for `tfaccel.train`. Without data, the model must have known inputs (a functional
            or sequential model), and only the forward pass is counted.
        replica_batch_size: the number of examples in the batch; None for the workload's `global_batch_size`, or for
            32 without data.
        **options: whatever `tfaccel.train` takes to make a workload from `workload`, `x` and `y`.

    Returns:
        A `ModelCost`.

    Raises:
        WorkloadError: for arguments that need data, if there are none; if the model does not take the data or has no
            known inputs; if a shape or the length of a loop depends on the data (the message names the operation).

    Example:
        >>> import keras
        >>> cost = get_cost(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), replica_batch_size=8)
        >>> cost.forward.matrix_flops, cost.num_parameters
        (64, 5)
    """
    if replica_batch_size is not None:
        check_counts(replica_batch_size=replica_batch_size)
    if x is None and not isinstance(workload, str | Workload) and not inspect.isroutine(workload):  # a model alone
        ignored = [*(["y"] if y is not None else []), *options]
        if ignored:
            raise WorkloadError(
                f"Without data, get_cost takes a model and replica_batch_size. Received as well: {', '.join(ignored)}. "
                "Leave them out, or give the data: get_cost(model, x, y, ...)."
            )
        return _without_data(workload, replica_batch_size or 32)
    made = given_workload(workload, x, y, **options)
    return _with_data(made, replica_batch_size or made.global_batch_size)


def _with_data(workload: Workload, rows: int) -> ModelCost:
    own = workload.build_model if isinstance(workload.build_model, RebuiltModel) else None
    policy = own.dtype_policy if own else keras.config.dtype_policy().name
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=rows, dtype_policy=policy)
    spec = with_rows(workload.train_data(rows, seed=0, epoch=0).element_spec, rows)
    model = built_model(workload, plan, spec)
    step = train_step_cost(get_engine(model), spec, rows=rows)
    forward = forward_cost(model, keras.utils.unpack_x_y_sample_weight(spec)[0], rows=rows)
    return ModelCost(replica_batch_size=rows, num_parameters=_num_parameters(model), forward=forward, step=step)


def _without_data(model: Any, rows: int) -> ModelCost:
    inputs = None
    if isinstance(model, keras.Model) and model.built:
        inputs = getattr(model, "input", None)  # a sequential model has only `inputs`
        inputs = (getattr(model, "inputs", None) or [None])[0] if inputs is None else inputs
    if inputs is None:
        raise WorkloadError(
            "get_cost takes a Keras model with known inputs (functional, or sequential with `keras.Input`), or a model "
            f"with its data: get_cost(build_model, x, y, ...). Received: {model!r:.200} without data."
        )
    spec = keras.tree.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), inputs)
    forward = forward_cost(model, spec, rows=rows)
    return ModelCost(replica_batch_size=rows, num_parameters=_num_parameters(model), forward=forward)


def _num_parameters(model: Any) -> int:
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)
