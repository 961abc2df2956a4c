"""Small operations on gradients, dense or `IndexedSlices`."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


def densify(gradients: list[Any]) -> list[Any]:
    """Gradients with the rows of `IndexedSlices` added up into dense tensors.

    Keras applies the gradient of a repeated embedding row once for each repetition, so that Adam and clipping see
    `sum(g_i ** 2)` in place of `sum(g_i) ** 2`. Summed first, they see the true gradient.
    """
    return [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in gradients]


def count_overflows(gradients: list[Any]) -> tf.Tensor:
    """How many gradients hold an inf or NaN, float32 scalar."""
    flags = [
        tf.reduce_any(~tf.math.is_finite(g.values if isinstance(g, tf.IndexedSlices) else g))
        for g in gradients
        if g is not None
    ]
    return tf.reduce_sum(tf.cast(tf.stack(flags), tf.float32)) if flags else tf.constant(0.0)


def empty_gradient(gradient: Any, variable: keras.Variable) -> Any:
    """The gradient of a variable over no rows: zeros, or `IndexedSlices` without a single slice."""
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.zeros(variable.shape, gradient.dtype)
    shape = [int(size) for size in variable.shape]
    return tf.IndexedSlices(
        tf.zeros([0, *shape[1:]], gradient.dtype), tf.zeros([0], gradient.indices.dtype),
        None if gradient.dense_shape is None else tf.constant(shape, gradient.dense_shape.dtype),
    )  # fmt: skip


def scaled(gradient: Any, weight: Any) -> Any:
    """A gradient times a number."""
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(weight, gradient.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(weight, gradient.dtype)
