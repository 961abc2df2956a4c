"""Batch normalization by TensorFlow's fused kernel, documented under `tf.compat.v1.nn.fused_batch_norm`.

Keras composes the layer of elementwise operations, each of which reads and writes all activations. The kernel computes
the same function: normalization by the mean and the biased variance of the batch, in float32 also for half precision.
Its second derivatives, as in a gradient penalty, are complete; those of `tf.nn.moments`, on which Keras's layer rests,
leave out a term.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_batch_norm

_DTYPES = (tf.float32, tf.bfloat16, tf.float16)
_SMALLEST_EPSILON = 1.001e-5  # the kernel replaces smaller ones by this one


def fused_batch_normalization(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make a `BatchNormalization` use the kernel in training, where it can; {} for other layers.

    The kernel takes inputs of shape `(batch, height, width, channels)` without a mask, and weights in float32. Keras's
    operations compute everything else: statistics over the rows of several replicas, renormalization, inference.
    """
    if not private_batch_norm.takes_keras_moments(layer) or layer.renorm or layer.epsilon < _SMALLEST_EPSILON:
        return {}
    keras_call = layer.call

    def call(inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        fits = len(inputs.shape) == 4 and layer.axis in (-1, 3) and inputs.shape[-1] is not None
        fits = fits and inputs.dtype in _DTYPES and layer.variable_dtype == "float32"
        if not (fits and training and layer.trainable and mask is None and private_batch_norm.uses_own_rows(layer)):
            return keras_call(inputs, training=training, mask=mask)
        channels = inputs.shape[-1]
        outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            inputs,
            tf.convert_to_tensor(layer.gamma) if layer.scale else tf.ones([channels]),
            tf.convert_to_tensor(layer.beta) if layer.center else tf.zeros([channels]),
            epsilon=layer.epsilon,
        )[:3]
        count = tf.cast(tf.reduce_prod(tf.shape(inputs)[:3]), tf.float32)
        biased = variance * ((count - 1.0) / count)
        for moving, value in ((layer.moving_mean, mean), (layer.moving_variance, biased)):
            moving.assign(moving * layer.momentum + value * (1.0 - layer.momentum))
        return tf.cast(outputs, layer.compute_dtype)

    return {"call": call}
