"""Out of memory: models that cannot fit are refused, and batches that do not fit become smaller.

The batch of a replica is halved and the accumulation steps are doubled, which keeps the global batch. That computes the
same mean gradient, except where a model or its data depend on which rows are processed together, or an epoch is not
made of whole batches: then it is refused.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from tfaccel.data.given_batches import GivenDataset, GivenGrain, GivenPyDataset
from tfaccel.errors import OutOfMemoryError, WorkloadError, is_out_of_memory
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.placements import SET_BY_YOU
from tfaccel.planning.plan import Plan, override_flag
from tfaccel.planning.workload import Workload
from tfaccel.training.proof.micro_batches import what_depends_on_micro_batches
from tfaccel.training.run.changed_run import why_epochs_differ
from tfaccel.training.steps.model_parts import has_own_train_step, stepping_optimizers
from tfaccel.training.steps.replicas import Replicas

_DETAIL = re.compile(r"OOM when allocating tensor with shape\[[\d,]*\]")
_REMEDIES = (
    "a smaller model, dtype_policy='mixed_bfloat16' or 'mixed_float16' (--dtype_policy), rematerialization=True "
    "(--set=rematerialization=on), logit_chunks=16 (--set=logit_chunks=16) for a large vocabulary, or more devices"
)

_WHAT = "weights and gradients"


class StepCancelled(Exception):
    """Signals that one of several replicas has failed, and that TensorFlow shows only that another was cancelled."""


class BatchTooLarge(Exception):
    """Signals that a run ran out of memory, and may continue with smaller batches.

    Attributes:
        plan: the plan with half the batch of a replica.
        detail: what could not be allocated.
    """

    def __init__(self, plan: Plan, detail: str) -> None:
        super().__init__(detail)
        self.plan = plan
        self.detail = detail


@contextlib.contextmanager
def smaller_batches_if_out_of_memory(
    model: keras.Model, workload: Workload, plan: Plan, replicas: Replicas
) -> Iterator[None]:
    """Within the block, running out of memory raises `BatchTooLarge`."""
    try:
        yield
    except tf.errors.CancelledError as error:
        if replicas.num_workers > 1 or replicas.num_replicas == 1:
            raise
        raise StepCancelled from error
    except (tf.errors.ResourceExhaustedError, tf.errors.InternalError) as error:
        if not is_out_of_memory(error):
            raise
        found = _DETAIL.search(str(error))
        detail = found[0] if found else "the device's memory is exhausted"
        reason = why_not_smaller(model, workload, plan, replicas)
        if reason is None:
            raise BatchTooLarge(with_smaller_batches(plan), detail) from None
        raise OutOfMemoryError(
            f"Training ran out of memory with batches of {plan.micro_batch_size} rows per replica ({detail}). {reason}"
        ) from error


def with_smaller_batches(plan: Plan) -> Plan:
    """The plan with half the batch of a replica and twice the accumulation steps: the same global batch.

    Example:
        >>> plan = with_smaller_batches(Plan(strategy="none", devices=("CPU:0",), global_batch_size=8))
        >>> plan.global_batch_size, plan.accumulation_steps, plan.micro_batch_size
        (8, 2, 4)
    """
    reason = f"Batches of {plan.micro_batch_size} rows per replica ran out of memory."
    reasons = {**dict(plan.reasons), "accumulation_steps": reason}
    return replace(plan, accumulation_steps=2 * plan.accumulation_steps, reasons=tuple(reasons.items()))


def why_not_smaller(model: keras.Model, workload: Workload, plan: Plan, replicas: Replicas) -> str | None:
    """Why a run may not continue with half the batch and twice the accumulation steps, and what helps; or None."""
    flag, steps = override_flag("accumulation_steps"), 2 * plan.accumulation_steps
    size = plan.micro_batch_size
    if size == 1:
        return f"One row is the smallest batch. What helps: {_REMEDIES}."
    if size % 2:
        return (
            f"{size} rows cannot be halved. Set accumulation_steps to a multiple of {plan.accumulation_steps} "
            f"({flag}=NUMBER) that divides the global batch into smaller ones, or choose another global_batch_size; or "
            f"use {_REMEDIES}."
        )
    to_allow = f"set accumulation_steps={steps} ({flag}={steps})"
    if dict(plan.reasons).get("accumulation_steps") == SET_BY_YOU:
        return f"accumulation_steps={plan.accumulation_steps} was set by you, and is not changed: {to_allow}."
    if replicas.num_workers > 1:
        return f"Several workers do not change their plan while they train: {to_allow} on all workers, and start again."
    if plan.embedding_updates != "keras":
        return (
            "Accumulated gradients are as large as their tables, so that embedding_updates="
            f"{plan.embedding_updates!r} needs whole batches: use a smaller global_batch_size, or {_REMEDIES}."
        )
    found = _what_depends_on_the_batch(model, workload, plan, replicas)
    if found is None:
        return None
    return f"The batch is not halved by itself, because {found}. If that is acceptable, {to_allow}; or use {_REMEDIES}."


def _what_depends_on_the_batch(model: keras.Model, workload: Workload, plan: Plan, replicas: Replicas) -> str | None:
    """What would give other results with smaller batches; None if nothing is found."""
    if not has_own_train_step(model):
        for optimizer in stepping_optimizers(model.optimizer):
            own = optimizer.gradient_accumulation_steps or 1
            if own != plan.accumulation_steps:
                return f"the optimizer accumulates gradients itself, over {own} batches"
    if isinstance(workload.train_data, GivenDataset | GivenPyDataset | GivenGrain):
        return f"the {workload.train_data.what} decides how many rows a batch has: make its batches half as large"
    size = plan.global_batch_size // plan.accumulation_steps
    batch = next(iter(workload.train_data(size, seed=0, epoch=0).take(1)), None)
    if batch is None:
        return None
    sums_duplicates = plan.sum_duplicate_indices or plan.accumulation_steps > 1
    return what_depends_on_micro_batches(model, replicas, batch, sums_duplicates=sums_duplicates) or why_epochs_differ(
        workload, plan
    )


def within_memory(name: str, plan: Plan, hardware: Hardware) -> contextlib.AbstractContextManager[None]:
    """Stops building a model, inside the strategy's scope, as soon as it exceeds the available memory.

    Without this check, the operating system kills the process without a message.

    Example:
        >>> plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=1)
        >>> try:
        ...     with within_memory("wide", plan, Hardware(memory_bytes=10_000)):
        ...         model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(100)])
        ... except WorkloadError as error:
        ...     str(error).partition(": ")[0]
        'The model of wide is too large'
    """
    room, taken = _bytes_for_a_replica(plan, hardware), 0

    def make(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        nonlocal taken
        variable = next_creator(**arguments)
        taken += _count_bytes(variable)
        if room is not None and taken > room:
            raise WorkloadError(_message(name, f"{_WHAT} take more than", taken, room, plan))
        return variable

    return tf.variable_creator_scope(make)


def check_memory(model: keras.Model, name: str, plan: Plan, hardware: Hardware) -> None:
    """Refuses a built model whose weights, gradients and optimizer state exceed the available memory.

    Activations come on top and are not known in advance, so a model that passes may still be too large.
    """
    room = _bytes_for_a_replica(plan, hardware)
    optimizer = getattr(model, "optimizer", None)
    weights = {id(one): _count_bytes(one) for one in model.variables}
    states = {
        id(one): _count_bytes(one) for one in (optimizer.variables if optimizer else []) if id(one) not in weights
    }
    slots = sum(states.values())
    on_device = {"sharded": slots // plan.num_replicas, "host": slots if plan.devices[0].startswith("CPU") else 0}
    needed = sum(weights.values()) + on_device.get(plan.optimizer_state, slots)
    if room is not None and needed > room:
        fits = [
            how for how, size in on_device.items() if sum(weights.values()) + size <= room and plan.strategy != "tpu"
        ]
        instead = f", or set optimizer_state={fits[0]!r}" if fits else ""
        raise WorkloadError(_message(name, f"{_WHAT}, plus optimizer state, take", needed, room, plan, instead))


def _bytes_for_a_replica(plan: Plan, hardware: Hardware) -> int | None:
    """Memory of the smallest device, times its stages, or each replica's share of a CPU's; None if unknown."""
    if plan.devices[0].startswith("CPU"):
        return hardware.memory_bytes // plan.num_local_replicas if hardware.memory_bytes else None
    sizes = [device.memory_bytes for device in hardware.devices if device.name in plan.devices]
    smallest = min((size for size in sizes if size), default=None)
    return None if smallest is None else smallest * plan.devices_per_replica


def _count_bytes(variable: Any) -> int:
    """Size of a variable, and of its gradient if it is trainable."""
    shape, dtype = tf.TensorShape(variable.shape), tf.as_dtype(variable.dtype)
    if not shape.is_fully_defined() or dtype.size is None:
        return 0
    return int(math.prod(shape.as_list()) * dtype.size * (2 if variable.trainable else 1))


def _message(name: str, take: str, needed: int, room: int, plan: Plan, instead: str = "") -> str:
    each = f" for each of {plan.num_local_replicas} replicas" if plan.num_local_replicas > 1 else ""
    return (
        f"The model of {name} is too large: {take} {needed / 2**30:,.1f} GiB, and {plan.devices[0]} has "
        f"{room / 2**30:,.1f} GiB{each}. Make the model smaller{instead}."
    )
