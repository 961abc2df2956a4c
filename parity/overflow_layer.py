"""A layer whose gradient is infinite for marked rows, to force an overflow on one replica."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable("tfaccel_parity")
class OverflowingGradient(keras.layers.Layer):
    """Returns its first input unchanged; rows whose second input contains `mark` get an infinite gradient."""

    def __init__(self, mark: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mark = mark
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        """`inputs` is a pair: hidden values of any rank, and the model's input for the same rows."""
        hidden, features = inputs
        others = list(range(1, len(features.shape)))
        marked = tf.reduce_any(tf.equal(tf.cast(features, tf.float32), self.mark), axis=others)
        factor = tf.where(marked, float("inf"), 1.0)

        @tf.custom_gradient
        def identity(values: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                shape = tf.concat([tf.shape(factor), tf.ones([len(upstream.shape) - 1], tf.int32)], axis=0)
                return upstream * tf.cast(tf.reshape(factor, shape), upstream.dtype)

            return tf.identity(values), gradient

        return identity(hidden)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The mask of the hidden values."""
        del inputs
        return mask[0] if isinstance(mask, (list, tuple)) else mask

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the hidden values."""
        return input_shape[0]
