"""Adam, AdamW and SGD with momentum by TensorFlow's kernels, which update a weight and its slots in one pass.

Keras composes each update of elementwise operations. The kernels are public operations of `tf.raw_ops`.

TensorFlow's Adam kernel takes dense gradients only. For a large embedding table, filling a new one with zeros takes as
long as writing the whole table, so it is kept in memory: each step clears the rows of the last batch, and writes its
own (`RowGradient`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_api, private_slots
from tfaccel.training.private.private_slots import plain_variable
from tfaccel.training.private.private_tensorflow import SCRATCH
from tfaccel.training.steps.overrides import keeps_methods

_MIN_BETA = 0.5  # the smallest by which moments may be divided without losing precision
_MIN_ROWS = 4096  # in smaller tables, most rows occur several times in a batch
_METHODS = ("update_step", "assign", "assign_add", "assign_sub")  # Keras's step calls the others

_kept: weakref.WeakKeyDictionary[keras.optimizers.Optimizer, dict[Any, RowGradient]] = weakref.WeakKeyDictionary()


def fused_update(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Attributes that make an optimizer use a kernel; {} where there is none.

    The kernels compute what Keras's `Adam`, `AdamW` and `SGD` with momentum compute, also with weight decay, clipping,
    EMA and accumulation, which are not part of the update. Adam takes the sparse gradients of embeddings too, on CPUs.
    Left to Keras are AMSGrad, other sparse gradients, and where the kernels would round what Keras does not: half
    precision, and Adam with a `beta_2` so near to 1 (0.9999) that `1 - beta_2` is inexact in float32.
    """
    kernel: Callable[..., None] | None = None
    if keeps_methods(optimizer, keras.optimizers.Adam, *_METHODS) and not optimizer.amsgrad:
        kernel = _adam
    elif keeps_methods(optimizer, keras.optimizers.SGD, *_METHODS) and optimizer.momentum:
        kernel = _momentum
    if kernel is None:
        return {}
    keras_step = optimizer.update_step

    def update_step(gradient: Any, variable: Any, learning_rate: Any) -> None:
        dtype = tf.as_dtype(variable.dtype)
        betas = (optimizer.beta_1, optimizer.beta_2) if kernel is _adam else ()
        is_exact = dtype in (tf.float32, tf.float64) and all(_has_exact_complement(beta, dtype) for beta in betas)
        if isinstance(gradient, tf.IndexedSlices) and is_exact and _takes_slices(betas, variable):
            gradient = _dense_gradient(optimizer, variable, gradient)
        if isinstance(gradient, tf.IndexedSlices) or not is_exact:
            keras_step(gradient, variable, learning_rate)
            return
        rate, key = learning_rate, (id(learning_rate), dtype, _handle(variable).device)
        if isinstance(rate, keras.Variable):
            rate = private_api.once_per_apply(optimizer, key, lambda: tf.cast(learning_rate, dtype))
        kernel(optimizer, variable, tf.cast(gradient, dtype), tf.cast(rate, dtype))

    return {"update_step": update_step}


def _has_exact_complement(beta: Any, dtype: tf.DType) -> bool:
    """Whether `1 - beta`, which the kernel computes in a weight's dtype and Keras in float64, is nearly the same."""
    if not isinstance(beta, int | float):
        return False
    return abs(float(dtype.as_numpy_dtype(beta)) - beta) <= 1e-4 * (1.0 - beta)


def _takes_slices(betas: tuple[float, ...], variable: Any) -> bool:
    """Whether sparse gradients can be added to the moments: Adam's, on a CPU, with betas that are not too small."""
    return bool(betas) and min(betas) >= _MIN_BETA and "CPU" in _handle(variable).device


def _dense_gradient(optimizer: Any, variable: Any, gradient: tf.IndexedSlices) -> tf.Tensor:
    """Makes a sparse gradient dense for the kernel, and adds to the moments what it leaves out.

    If a row occurs repeatedly, Keras squares each of its slices, not their sum. So the dense gradient has only the last
    slice of each row; with a small table, it is zero.
    """
    slices = tf.IndexedSlices(tf.cast(gradient.values, variable.dtype), gradient.indices)
    if variable.shape[0] < _MIN_ROWS:
        _add_to_moments(optimizer, variable, slices)
        return tf.zeros(variable.shape, variable.dtype)
    dense, others = row_gradient(optimizer, _tf_variable(variable)).of(slices)
    _add_to_moments(optimizer, variable, others)
    return dense


def _add_to_moments(optimizer: Any, variable: Any, slices: tf.IndexedSlices) -> None:
    """Adds slices to Adam's moments. They are divided by the betas, since the kernel multiplies the moments by them."""
    moments = zip(private_slots.adam_slots(optimizer, variable), (optimizer.beta_1, optimizer.beta_2), strict=True)
    for (moment, beta), part in zip(moments, (slices.values, tf.square(slices.values)), strict=True):
        added = part * tf.constant((1.0 - beta) / beta, part.dtype)
        tf.raw_ops.ResourceScatterNdAdd(ref=_handle(moment), indices=slices.indices[:, tf.newaxis], updates=added)
        tf.raw_ops.DisableCopyOnRead(resource=_handle(moment))  # or each update would copy the moment


def _tf_variable(variable: Any) -> tf.Variable:
    return private_api.tf_variable(variable) if isinstance(variable, keras.Variable) else variable


def _handle(variable: Any) -> Any:
    return _tf_variable(variable).handle


def _adam(optimizer: Any, variable: Any, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
    momentum, velocity = private_slots.adam_slots(optimizer, variable)
    dtype, handle = gradient.dtype, _handle(variable)
    numbers = private_api.once_per_apply(optimizer, (dtype, handle.device), lambda: _numbers_of_adam(optimizer, dtype))
    tf.raw_ops.ResourceApplyAdam(
        var=handle, m=_handle(momentum), v=_handle(velocity), lr=learning_rate, grad=gradient, **numbers
    )


def _numbers_of_adam(optimizer: Any, dtype: tf.DType) -> dict[str, tf.Tensor]:
    step = tf.cast(optimizer.iterations + 1, dtype)
    numbers = {"epsilon": tf.constant(optimizer.epsilon, dtype)}
    for name, beta in (("beta1", optimizer.beta_1), ("beta2", optimizer.beta_2)):
        numbers[name] = tf.constant(beta, dtype)
        numbers[f"{name}_power"] = tf.pow(tf.cast(beta, dtype), step)  # rounds to float32, like Keras
    return numbers


def _momentum(optimizer: Any, variable: Any, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=_handle(variable),
        accum=_handle(optimizer.momentums[private_api.variable_index(optimizer, variable)]),
        lr=learning_rate,
        grad=gradient,
        momentum=tf.constant(optimizer.momentum, gradient.dtype),
        use_nesterov=optimizer.nesterov,
    )


class RowGradient:
    """The dense gradient of one table.

    Args:
        table: of any rank, on a CPU.
    """

    def __init__(self, table: tf.Variable) -> None:
        with tf.init_scope(), tf.device(table.device):
            self._dense = plain_variable(tf.zeros(table.shape, table.dtype), "row_gradient")
            self._rows = plain_variable(tf.zeros([0], tf.int32), "rows_that_are_not_zero", shape=[None])
            self._places = plain_variable(tf.zeros(table.shape[:1], tf.int32), "last_place_of_a_row")
        for variable in (self._dense, self._rows, self._places):
            setattr(variable, SCRATCH, True)

    def of(self, slices: tf.IndexedSlices) -> tuple[tf.Tensor, tf.IndexedSlices]:
        """The dense gradient, with the last slice of each row; and the other slices of rows that occur repeatedly.

        A step that fails between two operations leaves nothing behind: rows are noted before they are written, and only
        once all rows that were noted before are zero, and none of the new ones is beyond the table.
        """
        raw, rows, places = tf.raw_ops, tf.cast(slices.indices, tf.int32), tf.range(tf.size(slices.indices))
        earlier = self._rows.read_value()
        zero = tf.zeros([], self._dense.dtype)  # a scalar: Grappler may take these rows to be as many as this step's
        cleared = raw.ResourceScatterUpdate(resource=self._dense.handle, indices=earlier, updates=zero)
        placed = raw.ResourceScatterUpdate(resource=self._places.handle, indices=rows, updates=places)
        with tf.control_dependencies([cleared, placed]):
            noted = self._rows.assign(rows)
        with tf.control_dependencies([noted]):
            raw.ResourceScatterUpdate(resource=self._dense.handle, indices=rows, updates=slices.values)
        raw.DisableCopyOnRead(resource=self._dense.handle)  # or each read would copy it
        dense = raw.ReadVariableOp(resource=self._dense.handle, dtype=self._dense.dtype)

        last = raw.ResourceGather(resource=self._places.handle, indices=rows, dtype=tf.int32)
        others = tf.where(tf.not_equal(last, places))[:, 0]
        return dense, tf.IndexedSlices(tf.gather(slices.values, others), tf.gather(rows, others))


def row_gradient(optimizer: keras.optimizers.Optimizer, table: tf.Variable) -> RowGradient:
    """The gradient of a table, made at the first call; it stays as long as the optimizer."""
    of_optimizer = _kept.setdefault(optimizer, {})
    key = table.ref()
    if key not in of_optimizer:
        of_optimizer[key] = RowGradient(table)
    return of_optimizer[key]
