"""A plan for `tfaccel.fit`: applies what can still be changed in a model that is already built and compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.private_pipelines import get_batch_size
from tfaccel.errors import PlanError
from tfaccel.planning.plan import Plan
from tfaccel.training.run.compiled_model import engine_options
from tfaccel.training.steps.batch_statistics import synchronize_batch_norm
from tfaccel.training.steps.engine import EngineOptions
from tfaccel.training.steps.model_parts import inner_optimizer
from tfaccel.training.steps.replicas import Replicas, short_name

_STRATEGIES = {
    "one_device": tf.distribute.OneDeviceStrategy,
    "multi_worker_mirrored": tf.distribute.MultiWorkerMirroredStrategy,
    "mirrored": tf.distribute.MirroredStrategy,
    "tpu": tf.distribute.TPUStrategy,
}


def plan_of_model(model: keras.Model, *, batch_size: int, **fields: Any) -> Plan:
    """The plan that a compiled model was built for, with the given fields replaced.

    Args:
        model: a compiled model.
        batch_size: number of examples in a batch over all replicas; the optimizer may accumulate several batches.
        **fields: fields of `Plan`, such as `sum_duplicate_indices`.

    Raises:
        PlanError: if the model's strategy does not allow a field.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> plan_of_model(model, batch_size=8, sum_duplicate_indices=True).strategy
        'none'
    """
    replicas = Replicas(model.distribute_strategy)
    default = "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"
    devices = tuple(map(short_name, filter(None, replicas.devices))) or (default,)
    accumulation = _accumulation_steps(model)
    given: dict[str, Any] = {
        "strategy": _get_strategy(replicas),
        "devices": devices,
        "num_workers": replicas.num_workers,
        "dtype_policy": model.dtype_policy.name,
        "jit_compile": bool(model.jit_compile),
        "global_batch_size": batch_size * accumulation,
        "accumulation_steps": accumulation,
    }
    if devices[0].startswith("CPU"):
        given["num_logical_cpus"] = len(tf.config.list_logical_devices("CPU"))
    return Plan(**{**given, **fields})


def apply_plan(model: keras.Model, plan: Plan, x: Any, batch_size: int | None) -> tuple[EngineOptions, int | None]:
    """Applies a plan to a compiled model.

    Args:
        model: a compiled model.
        plan: the plan. Its threads, memory and data pipeline apply to `tfaccel.train` only, and have no effect here.
        x, batch_size: as in `Model.fit`.

    Returns:
        The engine's options, and the batch size.

    Raises:
        PlanError: if the plan has another strategy, dtype policy or batch size than the model and its data; the message
            names all differences.
    """
    replicas = Replicas(model.distribute_strategy)
    is_dataset = isinstance(x, tf.data.Dataset)
    micro_batch = plan.global_batch_size // plan.accumulation_steps
    there = {
        "strategy": (plan.strategy, _get_strategy(replicas)),
        "replicas": (plan.num_replicas, replicas.num_replicas),
        "dtype_policy": (plan.dtype_policy, model.dtype_policy.name),
        "accumulation_steps": (plan.accumulation_steps, _accumulation_steps(model)),
        "batch_size": (micro_batch, (get_batch_size(x) if is_dataset else batch_size) or micro_batch),
        "augment_on": (plan.augment_on, "host"),
    }
    odd = [f"{name} is {mine} in the plan and {found} here" for name, (mine, found) in there.items() if mine != found]
    if odd:
        raise PlanError(
            f"The plan does not match this model, which is already built and compiled: {'; '.join(odd)}. Build the "
            "model under the plan (`with tfaccel.Runtime(plan) as runtime, runtime.strategy.scope(): ...`), or change "
            "the plan."
        )
    if plan.synchronize_batch_norm:
        synchronize_batch_norm(model)
    if model.jit_compile != plan.jit_compile:
        model.jit_compile = plan.jit_compile
        model.train_function = None  # otherwise Keras keeps using the old graph
    if plan.steps_per_execution is not None:
        model.steps_per_execution = plan.steps_per_execution * plan.accumulation_steps
    devices = plan.devices if plan.devices_per_replica > 1 else ()  # as this process numbers them
    as_keras: dict[str, Any] = {"batches_per_step": 1, "times_input": False, "stop_at_non_finite_loss": False}
    options = replace(engine_options(plan), stage_devices=devices, **as_keras)
    takes_size = not is_dataset and not isinstance(x, keras.utils.PyDataset) and not hasattr(x, "__next__")
    return options, micro_batch if takes_size else batch_size


def _accumulation_steps(model: keras.Model) -> int:
    """Batches per optimizer step of a compiled model."""
    optimizer = getattr(model, "optimizer", None)
    return getattr(inner_optimizer(optimizer), "gradient_accumulation_steps", None) or 1


def _get_strategy(replicas: Replicas) -> str:
    """The name that plans use for the strategy."""
    if replicas.is_default:
        return "none"
    kinds = (name for name, kind in _STRATEGIES.items() if isinstance(replicas.strategy, kind))
    return next(kinds, type(replicas.strategy).__name__)
