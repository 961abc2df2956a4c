"""The private API of TensorFlow and of Keras's variables and metrics that is not specific to training steps.

Separate collectives per strategy, operations that XLA can compile, LiteRT's quantization scales, SavedModel contents.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.tested_versions import private_part

GROUPS_PER_STRATEGY = 1000


def global_seed() -> int | None:
    """The seed passed to `tf.random.set_seed`, or None; there is no public getter."""
    from tensorflow.python.eager import context

    seed: int | None = context.global_seed()
    return seed


_numbers: weakref.WeakKeyDictionary[tf.distribute.Strategy, int] = weakref.WeakKeyDictionary()
_next_number = itertools.count(1).__next__  # not 0: `Model.fit` under a strategy of its own may have used those keys


def keep_collectives_apart(strategy: tf.distribute.Strategy) -> None:
    """Gives each strategy of this process separate collectives. Call it before the strategy's first step is traced.

    TensorFlow keeps a collective's parameters for the lifetime of the process, under keys that restart with each
    strategy object. A second `MirroredStrategy`, for example after running a notebook cell twice, then fails with
    "Shape mismatch in the collective instance". TensorFlow's own tests set other keys (`_collective_key_base`).
    If the private names are missing, the strategy is left unchanged.
    """
    if strategy in _numbers:
        return
    _numbers[strategy] = number = _next_number()
    extended = strategy.extended
    operations = {id(o): o for o in (getattr(extended, f"_{n}", None) for n in ("collective_ops", "cross_device_ops"))}
    for operation in operations.values():
        keys, launchers = getattr(operation, "_collective_keys", None), getattr(operation, "_launchers", ())
        groups = getattr(keys, "_instance_key_table", {})
        for launcher in launchers:
            own = launcher._group_key + number * GROUPS_PER_STRATEGY
            if launcher._group_key in groups:
                groups.setdefault(own, dict(groups[launcher._group_key]))
                launcher._group_key = own


def without_recording() -> contextlib.AbstractContextManager[None]:
    """A context in which no `tf.GradientTape` records; the public way needs the tape."""
    from tensorflow.python.eager import record

    context: contextlib.AbstractContextManager[None] = private_part(record, "stop_recording", package="tensorflow")()
    return context


@functools.cache
def uses_onednn() -> bool:
    """Whether the loaded TensorFlow runs oneDNN's operations on the CPU; it decided when it was loaded."""
    from tensorflow.python.util import _pywrap_util_port

    return bool(private_part(_pywrap_util_port, "IsMklEnabled", package="tensorflow")())


def operations_of_xla() -> frozenset[str] | None:
    """The names of the TensorFlow operations that XLA can compile; None if this TensorFlow build does not list them.

    With public API, compilation reports only the first unsupported operation; this list makes it possible to name all.
    """
    try:
        from tensorflow.python.framework import kernels

        registered = kernels.get_all_registered_kernels().kernel
    except (ImportError, AttributeError):
        return None
    return frozenset(kernel.op for kernel in registered if kernel.device_type == "XLA_CPU_JIT") or None


def one_scale_per_kernel(converter: Any) -> None:
    """Makes a LiteRT converter quantize weights per tensor instead of per channel; there is no public option."""
    private_part(converter, "_experimental_disable_per_channel", package="tensorflow")
    converter._experimental_disable_per_channel = True


@contextlib.contextmanager
def variables_in_float32(variables: Sequence[keras.Variable]) -> Iterator[None]:
    """Temporarily replaces float16, bfloat16 and float64 variables by float32 copies."""
    others = [one for one in variables if one.dtype in ("float16", "bfloat16", "float64")]
    saved = [(one, one._value, one._dtype) for one in others]
    try:
        for one in others:
            one._value, one._dtype = tf.Variable(tf.cast(one._value, tf.float32), name=one.name), "float32"
        yield
    finally:
        for one, value, dtype in saved:
            one._value, one._dtype = value, dtype


def metric_directions(model: keras.Model) -> list[tuple[str, str]]:
    """Pairs of a metric's name and its better direction, "up" or "down", if the metric's class defines it."""
    metrics = [inner for one in model.metrics for inner in (one, *getattr(one, "metrics", ()))]
    return [(one.name, one._direction) for one in metrics if getattr(one, "_direction", None) in ("up", "down")]


def parse_saved_model(content: bytes) -> Any:
    """Parses the content of a `saved_model.pb` file; its protocol buffer class has no public name."""
    from tensorflow.core.protobuf import saved_model_pb2

    return saved_model_pb2.SavedModel.FromString(content)
