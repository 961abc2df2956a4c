"""A broadcast from one replica to those of all workers, which `tf.distribute` has for initial values only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfaccel.tested_versions import private_part

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


def _launchers(strategy: tf.distribute.Strategy) -> list[Any]:
    """What launches the collectives of each local replica."""
    return list(private_part(strategy.extended, "_cross_device_ops._launchers", **_PACKAGE))


def _touch(launcher: Any) -> Any:
    """An operation on the variable that TensorFlow's other collectives of a device use in turn."""
    return private_part(launcher, "_ordering_token", **_PACKAGE).assign_add(0.0, read_value=False)
