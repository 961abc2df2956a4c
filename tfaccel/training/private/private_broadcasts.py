"""Broadcasts the initial values of a model's variables to all workers at once, where TensorFlow does so one by one.

`MultiWorkerMirroredStrategy` broadcasts each variable from the chief when it is created, which takes some 8 ms each.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfaccel.tested_versions import private_part
from tfaccel.training.steps.overrides import instance_attributes

# Packs take twice their size while they are sent; TensorFlow sends larger variables, without a copy.
_PACK_BYTES = 32 * 2**20
_PACKAGE = {"package": "tensorflow"}
# What TensorFlow's broadcast takes; other dtypes travel as one that holds all of their values.
_BROADCAST = (tf.bool, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


@contextlib.contextmanager
def broadcast_at_once() -> Iterator[None]:
    """Within the block, variables take their own worker's initial values; at its end, the chief's, in few broadcasts.

    For the strategy of the scope that the block is in. Without several workers, it does nothing.
    """
    extended = tf.distribute.get_strategy().extended
    if getattr(extended, "_num_workers", 1) < 2:
        yield
        return
    created: list[Any] = []
    large: list[Any] = []  # the initial value of the variable in creation, if it is
    initial = private_part(extended, "_get_variable_creator_initial_value", **_PACKAGE)
    create = private_part(extended, "_create_variable", **_PACKAGE)

    def own_initial(*args: Any, **kwargs: Any) -> Callable[[], Any]:
        get_value: Callable[[], Any] = initial(*args, **kwargs)
        value = kwargs["initial_value"]
        is_large = tf.is_tensor(value) and value.dtype in _BROADCAST and _num_bytes(value) >= _PACK_BYTES
        if is_large and not _zeros_everywhere([[value]])[0]:
            large.append(value)
            return get_value

        def own() -> Any:
            with instance_attributes(extended, {"_num_workers": 1}):
                return get_value()

        return own

    def noted(*args: Any, **kwargs: Any) -> Any:
        variable = create(*args, **kwargs)
        if not large:
            created.append(variable)
        large.clear()
        return variable

    with instance_attributes(extended, {"_get_variable_creator_initial_value": own_initial, "_create_variable": noted}):
        yield
    _broadcast(created)


def _broadcast(variables: list[Any]) -> None:
    """Gives variables the chief's values, on all replicas; those that are zero on all workers need none."""
    strategy = tf.distribute.get_strategy()
    is_chief = private_part(strategy.extended, "_is_chief", **_PACKAGE)
    zeros = _zeros_everywhere([strategy.experimental_local_results(one) for one in variables])
    for pack in _packs([one for one, is_zero in zip(variables, zeros, strict=True) if not is_zero]):
        own = [strategy.experimental_local_results(one)[0].read_value() for one in pack]
        flat = tf.concat([tf.reshape(value, [-1]) for value in own], 0)
        flat = flat if flat.dtype in _BROADCAST else tf.cast(flat, tf.float32 if flat.dtype.is_floating else tf.int64)
        sent = tf.Variable(flat, trainable=False)  # TensorFlow broadcasts its initial value
        if is_chief:
            continue
        values = tf.split(strategy.experimental_local_results(sent)[0], [tf.size(value) for value in own])
        for variable, before, value in zip(pack, own, values, strict=True):
            for part in strategy.experimental_local_results(variable):
                part.assign(tf.cast(tf.reshape(value, before.shape), before.dtype))


def _zeros_everywhere(variables: Sequence[Sequence[Any]]) -> list[bool]:
    """Which variables, each as its parts on this worker's replicas, are zero on all workers, as new slots are."""
    if not variables:
        return []
    strategy = tf.distribute.get_strategy()
    nonzero = tf.constant([any(map(_has_a_nonzero, parts)) for parts in variables], tf.int32)
    per_replica = strategy.experimental_distribute_values_from_function(lambda _: nonzero)
    return [not number for number in strategy.reduce("SUM", per_replica, axis=None).numpy()]


def _has_a_nonzero(value: Any) -> bool:
    if not (value.dtype.is_floating or value.dtype.is_integer):
        return True
    return bool(tf.reduce_any(tf.cast(value, tf.bool)))


def _packs(variables: list[Any]) -> Iterator[list[Any]]:
    """The variables in groups of one dtype, none much larger than `_PACK_BYTES`; the same on all workers."""
    for _, group in itertools.groupby(sorted(variables, key=lambda one: one.dtype.name), key=lambda one: one.dtype):
        pack: list[Any] = []
        size = 0
        for variable in group:
            pack.append(variable)
            size += _num_bytes(variable)
            if size >= _PACK_BYTES:
                yield pack
                pack, size = [], 0
        if pack:
            yield pack


def _num_bytes(values: Any) -> int:
    return (values.shape.num_elements() or 0) * int(values.dtype.size)


def give_values_of_chief(variable: tf.Variable) -> None:
    """Gives a plain variable, of which each worker has one, the chief's values, a part of its rows at a time.

    Call it in the scope of the workers' strategy. Without several workers, it does nothing.
    """
    strategy = tf.distribute.get_strategy()
    if getattr(strategy.extended, "_num_workers", 1) < 2:
        return
    num_rows = int(variable.shape[0])
    rows_at_once = max(1, num_rows * _PACK_BYTES // max(1, _num_bytes(variable)))
    for start in range(0, num_rows, rows_at_once):
        part = variable[start : start + rows_at_once]
        sent = tf.Variable(part if part.dtype in _BROADCAST else tf.cast(part, tf.float32), trainable=False)
        received = strategy.experimental_local_results(sent)[0]
        variable[start : start + rows_at_once].assign(tf.cast(received, part.dtype))
