"""Private parts of TensorFlow, and of Keras's variables and metrics, that stand apart from training.

Collectives of several strategies kept apart, what XLA can compile, scales in LiteRT, the content of a SavedModel.
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

GROUPS_OF_A_STRATEGY = 1000


def global_seed() -> int | None:
    """The seed given to `tf.random.set_seed`, or None; what is public does not tell whether one was given."""
    from tensorflow.python.eager import context

    seed: int | None = context.global_seed()
    return seed


_numbers: weakref.WeakKeyDictionary[tf.distribute.Strategy, int] = weakref.WeakKeyDictionary()
_next_number = itertools.count().__next__


def keep_collectives_apart(strategy: tf.distribute.Strategy) -> None:
    """Gives each strategy of this process collectives of its own; to be called before its first step is traced.

    TensorFlow keeps what it knows of a collective for the life of the process, under keys that begin anew with each
    strategy object. A second `MirroredStrategy`, as after running a notebook's cell twice, then fails with "Shape
    mismatch in the collective instance"; TensorFlow's own tests choose other keys (`_collective_key_base`).
    Where the private parts are gone, the strategy is left as it is.
    """
    if strategy in _numbers:
        return
    _numbers[strategy] = number = _next_number()
    extended = strategy.extended
    operations = {id(o): o for o in (getattr(extended, f"_{n}", None) for n in ("collective_ops", "cross_device_ops"))}
    for operation in operations.values():
        keys, launchers = getattr(operation, "_collective_keys", None), getattr(operation, "_launchers", ())
        groups = getattr(keys, "_instance_key_table", {})
        for launcher in launchers if number else ():
            own = launcher._group_key + number * GROUPS_OF_A_STRATEGY
            if launcher._group_key in groups:
                groups.setdefault(own, dict(groups[launcher._group_key]))
                launcher._group_key = own


@functools.cache
def operations_of_xla() -> frozenset[str] | None:
    """The TensorFlow operations that XLA can compile here; None where this build does not tell.

    Public API compiles a program or names the first operation that cannot be; this list names all of them at once.
    """
    try:
        from tensorflow.python.framework import kernels

        registered = kernels.get_all_registered_kernels().kernel
    except (ImportError, AttributeError):
        return None
    return frozenset(kernel.op for kernel in registered if kernel.device_type == "XLA_CPU_JIT") or None


def one_scale_per_kernel(converter: Any) -> None:
    """Has a converter to LiteRT quantize each kernel with one scale, not with one for each of its channels.

    The public API has no such option.
    """
    private_part(converter, "_experimental_disable_per_channel", package="tensorflow")
    converter._experimental_disable_per_channel = True


@contextlib.contextmanager
def variables_in_float32(variables: Sequence[keras.Variable]) -> Iterator[None]:
    """Lets floating variables of another dtype hold float32; afterwards as before, with what they held before."""
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
    """Pairs of a metric's name and "up" or "down", for the compiled metrics whose class knows what is better."""
    metrics = [inner for one in model.metrics for inner in (one, *getattr(one, "metrics", ()))]
    return [(one.name, one._direction) for one in metrics if getattr(one, "_direction", None) in ("up", "down")]


def saved_model_of(content: bytes) -> Any:
    """The protocol buffer in `saved_model.pb`, whose class has no public name."""
    from tensorflow.core.protobuf import saved_model_pb2

    return saved_model_pb2.SavedModel.FromString(content)
