"""Checks that a model fits into device memory, while it is built and before the first step."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import WorkloadError
from tfaccel.hardware.hardware import Hardware
from tfaccel.planning.plan import Plan

_WHAT = "weights and gradients"


@contextlib.contextmanager
def within_memory(name: str, plan: Plan, hardware: Hardware) -> Iterator[None]:
    """Stops building a model, inside the strategy's scope, as soon as it exceeds the available memory.

    Without this check, the operating system kills the process without a message.

    Args:
        name: name of the workload.
        plan, hardware: the devices that hold the model, and their memory.

    Raises:
        WorkloadError: at the first variable that does not fit together with its gradient.

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

    with tf.variable_creator_scope(make):
        yield


def check_memory(model: keras.Model, name: str, plan: Plan, hardware: Hardware) -> None:
    """Refuses a built model whose weights, gradients and optimizer state exceed the available memory.

    Activations come on top and are not known in advance, so a model that passes may still be too large.

    Args:
        model: a built model with its optimizer.
        name, plan, hardware: as in `within_memory`.

    Raises:
        WorkloadError: if the model is too large.
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
