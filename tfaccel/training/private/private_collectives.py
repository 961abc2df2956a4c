"""A broadcast from one replica to those of all workers, which `tf.distribute` has for initial values only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.graph_function import graph_function
from tfaccel.tested_versions import private_part

PIECE_BYTES = 4 << 20  # larger messages are slower, and take memory
_PACKAGE = {"package": "tensorflow"}
# What TensorFlow's broadcast takes; other floating-point dtypes travel as float32, which holds all of their values.
_DTYPES = (tf.bool, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


def broadcast(
    strategy: tf.distribute.Strategy,
    values: Sequence[Any],
    shape: Sequence[int],
    dtype: tf.DType,
    *,
    after: Sequence[Sequence[Any]],
) -> list[Any]:
    """Sends a tensor from one replica to all others of a `MultiWorkerMirroredStrategy`. All workers call it together.

    Args:
        strategy: whose replicas take part.
        values: for each local replica, the tensor that it sends, or None to receive it.
        shape, dtype: of the tensor.
        after: for each local replica, what must be there before it sends or receives.

    Returns:
        For each local replica, what it has received, or the operation that has sent.
    """
    from tensorflow.python.ops import collective_ops

    send = private_part(collective_ops, "broadcast_send_v2", **_PACKAGE)
    receive = private_part(collective_ops, "broadcast_recv_v2", **_PACKAGE)
    sent = dtype if dtype in _DTYPES else tf.float32
    results: list[Any] = []
    for launcher, value, earlier in zip(_launchers(strategy), values, after, strict=True):
        group: dict[str, Any] = {
            "group_size": launcher._group_size,
            "group_key": launcher._group_key,
            "instance_key": launcher._next_instance_key(),
            "communication_hint": launcher._options.implementation.value,
            "timeout": launcher._options.timeout_seconds or 0,
        }
        on_gpu = "GPU" in launcher._device  # where collectives must have one order on all devices
        with tf.device(launcher._device), tf.control_dependencies([*earlier, *([_touch(launcher)] if on_gpu else [])]):
            if value is None:
                done = receive(tf.constant(list(shape), tf.int32), sent, **group)
            else:
                done = send(tf.cast(value, sent), **group)
        # A graph leaves out an operation of this kind whose output nothing needs.
        with tf.device(launcher._device), tf.control_dependencies([done]):
            end = _touch(launcher) if on_gpu or value is not None else None
        results.append(end if value is not None else tf.ensure_shape(tf.cast(done, dtype), list(shape)))
    return results


def broadcast_array(
    strategy: tf.distribute.Strategy, value: Any, replica: int, shape: Sequence[int], dtype: tf.DType
) -> np.ndarray:
    """Sends a value from one replica to all workers, which call it together; not in a graph.

    Args:
        strategy: of the replicas.
        value: the value, on the worker that sends it; None on the others.
        replica: which of that worker's replicas sends.
        shape, dtype: of the value.
    """
    devices = [launcher._device for launcher in _launchers(strategy)]
    flat = None if value is None else tf.reshape(value, [-1])
    num_values = math.prod(shape)
    received = None if flat is not None else np.empty(num_values, dtype.as_numpy_dtype)

    @graph_function
    def all_get(piece: Any) -> list[Any]:
        values = [piece if value is not None and index == replica else None for index in range(len(devices))]
        results = broadcast(strategy, values, [size], dtype, after=[()] * len(devices))
        return [result for result in results if tf.is_tensor(result)]

    step = max(1, PIECE_BYTES // int(dtype.size))
    for start in range(0, num_values, step):
        size = min(step, num_values - start)
        results = all_get(tf.zeros([size], dtype) if flat is None else flat[start : start + size])
        if received is not None:
            received[start : start + size] = results[0].numpy()
    return np.asarray(value.numpy()) if received is None else received.reshape(shape)


def _launchers(strategy: tf.distribute.Strategy) -> list[Any]:
    """What launches the collectives of each local replica."""
    return list(private_part(strategy.extended, "_cross_device_ops._launchers", **_PACKAGE))


def _touch(launcher: Any) -> Any:
    """An operation on the variable that TensorFlow's other collectives of a device use in turn."""
    return private_part(launcher, "_ordering_token", **_PACKAGE).assign_add(0.0, read_value=False)
