"""The private API of Keras's `BatchNormalization` that tfaccel uses to compute batch statistics.

No public API selects the rows that statistics are computed over. Keras's `synchronized=True` ignores masks, and
computes the variance as a difference of squares, which loses precision if the mean is large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.tested_versions import private_part
from tfaccel.training.steps.overrides import keeps_methods_of

Sum = Callable[[tf.Tensor], tf.Tensor]


def takes_keras_moments(layer: keras.layers.Layer) -> bool:
    """Whether a layer is a `BatchNormalization` that does not override how Keras computes its statistics."""
    return keeps_methods_of(layer, keras.layers.BatchNormalization, "call", "_moments")


def uses_own_rows(layer: keras.layers.BatchNormalization) -> bool:
    """Whether a layer computes its statistics over the rows of its replica; calls what wants to notice that."""
    moments = vars(layer).get("_moments")
    if moments is None:
        return not layer.synchronized
    if not hasattr(moments, "notice"):
        return False
    moments.notice()
    return True


def global_moments(layer: keras.layers.BatchNormalization, *, own_rows: Sum, sum_over_replicas: Sum) -> dict[str, Any]:
    """Attributes that make a layer compute mean and variance over the rows of all replicas, as on one device.

    Args:
        layer: a layer that `takes_keras_moments`.
        own_rows: drops rows that the replica borrowed from another one.
        sum_over_replicas: sums over the replicas; its gradient must be summed over them too.
    """

    def moments(inputs: tf.Tensor, mask: Any = None) -> tuple[tf.Tensor, tf.Tensor]:
        axes, inputs = private_part(layer, "_reduction_axes"), own_rows(inputs)
        shape = [1] * len(inputs.shape)
        shape[layer.axis] = inputs.shape[layer.axis]
        valid, smallest = None, 0.0
        if mask is not None:
            valid = tf.broadcast_to(tf.cast(own_rows(mask), tf.bool)[..., tf.newaxis], tf.shape(inputs))
            smallest = keras.backend.epsilon()  # as Keras adds it

        def summed(values: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(values if valid is None else tf.where(valid, values, tf.zeros_like(values)), axes)

        sums = sum_over_replicas(tf.stack([summed(inputs), summed(tf.ones_like(inputs))]))
        count = tf.stop_gradient(sums[1]) + smallest
        mean = sums[0] / count
        # Deviations from the mean sum to zero, so the variance has no gradient through the mean.
        deviations = tf.math.squared_difference(inputs, tf.stop_gradient(tf.reshape(mean, shape)))
        return mean, sum_over_replicas(summed(deviations)) / count

    return {"_moments": moments}


def noticed_moments(layer: keras.layers.BatchNormalization, notice: Callable[[], Any]) -> dict[str, Any]:
    """Attributes that make a layer call `notice` whenever it computes batch statistics."""
    moments = private_part(layer, "_moments")

    def noticed(inputs: tf.Tensor, mask: Any = None) -> Any:
        notice()
        return moments(inputs, mask)

    noticed.notice = notice  # type: ignore[attr-defined]
    return {"_moments": noticed}
