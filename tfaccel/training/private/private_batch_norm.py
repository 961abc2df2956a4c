"""The private API of Keras's `BatchNormalization` that tfaccel uses to compute batch statistics.

No public API selects the rows that statistics are computed over. Keras's `synchronized=True` ignores masks, and
computes the variance as a difference of squares, which loses precision if the mean is large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import keras
import tensorflow as tf

from tfaccel.tested_versions import private_part
from tfaccel.training.steps.overrides import keeps_methods


def takes_keras_moments(layer: keras.layers.Layer) -> bool:
    """Whether a layer is a `BatchNormalization` that does not override how Keras computes its statistics."""
    return keeps_methods(layer, keras.layers.BatchNormalization, "call", "_moments")


def uses_own_rows(layer: keras.layers.BatchNormalization) -> bool:
    """Whether a layer computes its statistics over the rows of its replica; calls what wants to notice that."""
    moments = vars(layer).get("_moments")
    if moments is None:
        return not layer.synchronized
    if not hasattr(moments, "notice"):
        return False
    moments.notice()
    return True


class Exchange(Protocol):
    """How one replica's sums become those of all replicas, while its step is traced."""

    def own(self, sums: tf.Tensor) -> tf.Tensor:
        """A replica's sums over its rows; zeros if its only row is borrowed from another replica."""

    def sum(self, values: tf.Tensor) -> tf.Tensor:
        """The sum over the replicas."""

    def gradient(self, upstream: tf.Tensor) -> tf.Tensor:
        """The gradient of `sum` with respect to this replica's values."""


def global_moments(layer: keras.layers.BatchNormalization, exchange: Exchange) -> dict[str, Any]:
    """Attributes that make a layer compute mean and variance over the rows of all replicas, as on one device.

    The gradient is written out: it passes over the activations once, where that of `tf.nn.moments` does several times.

    Args:
        layer: a layer that `takes_keras_moments`.
        exchange: sums over the replicas.
    """

    def moments(inputs: tf.Tensor, mask: Any = None) -> tuple[tf.Tensor, tf.Tensor]:
        axes, channels = private_part(layer, "_reduction_axes"), inputs.shape[layer.axis]
        shape = [1] * len(inputs.shape)
        shape[layer.axis] = channels
        valid = None
        if mask is not None:
            valid = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))

        def summed(values: tf.Tensor) -> tf.Tensor:
            return tf.reduce_sum(values if valid is None else tf.where(valid, values, tf.zeros_like(values)), axes)

        @tf.custom_gradient
        def of_all_rows(x: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable[..., tf.Tensor]]:
            if valid is None:
                own_count = tf.cast(tf.fill([channels], tf.size(x) // channels), x.dtype)
            else:
                own_count = summed(tf.ones_like(x))
            sums = exchange.sum(exchange.own(tf.stack([summed(x), own_count])))
            count = sums[1] + (0.0 if valid is None else keras.backend.epsilon())  # as Keras adds it
            mean = sums[0] / count
            deviations = x - tf.reshape(mean, shape)
            variance = exchange.sum(exchange.own(summed(tf.square(deviations)))) / count

            def gradient(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tf.Tensor:
                # Deviations from the mean sum to zero, so the variance has no gradient through the mean.
                upstream = exchange.own(exchange.gradient(tf.stack([of_mean, 2.0 * of_variance]) / count))
                of_x = (x - tf.reshape(mean, shape)) * tf.reshape(upstream[1], shape) + tf.reshape(upstream[0], shape)
                return of_x if valid is None else tf.where(valid, of_x, tf.zeros_like(of_x))

            return (mean, variance), gradient

        return of_all_rows(inputs)

    return {"_moments": moments}


def noticed_moments(layer: keras.layers.BatchNormalization, notice: Callable[[], Any]) -> dict[str, Any]:
    """Attributes that make a layer call `notice` whenever it computes batch statistics."""
    moments = private_part(layer, "_moments")

    def noticed(inputs: tf.Tensor, mask: Any = None) -> Any:
        notice()
        return moments(inputs, mask)

    noticed.notice = notice  # type: ignore[attr-defined]
    return {"_moments": noticed}
