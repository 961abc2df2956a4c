"""Layer normalization with a gradient in closed form, and batch normalization by TensorFlow's fused kernel.

Automatic differentiation of Keras's operations reads and writes the activations about twice as often.

The kernel for batch normalization is documented under `tf.compat.v1.nn.fused_batch_norm`: normalization by the mean and
the biased variance of the batch, in float32 also for half precision. Its second derivatives, as in a gradient penalty,
are complete; those of `tf.nn.moments`, on which Keras's layer rests, leave out a term.

Source: Ba, Kiros and Hinton, "Layer Normalization", 2016, https://arxiv.org/abs/1607.06450
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_layers
from tfaccel.training.steps.overrides import keeps_methods

_DTYPES = (tf.float32, tf.bfloat16, tf.float16)


def fused_layer_normalization(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make a `LayerNormalization` over the last axis use `layer_norm`; {} for other layers.

    Inputs or weights in float64 are left to Keras.
    """
    if not keeps_methods(layer, keras.layers.LayerNormalization, "call") or layer.rms_scaling:
        return {}
    keras_call = layer.call

    def call(inputs: Any) -> Any:
        axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
        is_last = [axis % len(inputs.shape) for axis in axes] == [len(inputs.shape) - 1]
        is_known = inputs.dtype in _DTYPES and layer.variable_dtype != "float64" and inputs.shape[-1] is not None
        if not (is_last and is_known):
            return keras_call(inputs)
        size = inputs.shape[-1]
        gamma = tf.ones([size]) if layer.gamma is None else tf.cast(layer.gamma, tf.float32)
        beta = tf.zeros([size]) if layer.beta is None else tf.cast(layer.beta, tf.float32)
        return tf.cast(layer_norm(inputs, gamma, beta, layer.epsilon), layer.compute_dtype)

    return {"call": call}


def layer_norm(inputs: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Normalizes each row of the last axis to mean 0 and variance 1, then scales and shifts it.

    Args:
        inputs: a float tensor; half precision is computed in float32.
        gamma, beta: float32, of the length of the last axis.
        epsilon: added to the variance.

    Returns:
        A tensor of the shape and dtype of `inputs`.

    Example:
        >>> layer_norm(tf.constant([[1.0, 3.0]]), tf.ones([2]), tf.zeros([2]), 0.0).numpy().tolist()
        [[-1.0, 1.0]]
    """

    @tf.custom_gradient
    def normalized(inputs: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        size = inputs.shape[-1]
        rows = tf.reshape(tf.cast(inputs, tf.float32), [-1, size])
        deviations = rows - tf.reduce_mean(rows, -1, keepdims=True)
        scale = tf.math.rsqrt(tf.reduce_mean(tf.square(deviations), -1, keepdims=True) + epsilon)
        standard = deviations * scale

        def gradients(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            upstream = tf.reshape(tf.cast(upstream, tf.float32), [-1, size])
            weighted = upstream * standard
            means = gamma[:, tf.newaxis] / size  # a row's product with them is its mean, weighted by gamma
            projection = standard * tf.matmul(weighted, means)
            of_rows = (upstream * gamma - tf.matmul(upstream, means) - projection) * scale
            of_inputs = tf.reshape(tf.cast(of_rows, inputs.dtype), tf.shape(inputs))
            return of_inputs, tf.reduce_sum(weighted, 0), tf.reduce_sum(upstream, 0)

        return tf.reshape(tf.cast(standard * gamma + beta, inputs.dtype), tf.shape(inputs)), gradients

    return normalized(inputs, gamma, beta)


_SMALLEST_EPSILON = 1.001e-5  # the kernel replaces smaller ones by this one


def fused_batch_normalization(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make a `BatchNormalization` use the kernel in training, where it can; {} for other layers.

    The kernel takes inputs of shape `(batch, height, width, channels)` without a mask, and weights in float32. Keras's
    operations compute everything else: statistics over the rows of several replicas, renormalization, inference.
    """
    if not private_layers.takes_keras_moments(layer) or layer.renorm or layer.epsilon < _SMALLEST_EPSILON:
        return {}
    keras_call = layer.call

    def call(inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        fits = len(inputs.shape) == 4 and layer.axis in (-1, 3) and inputs.shape[-1] is not None
        fits = fits and inputs.dtype in _DTYPES and layer.variable_dtype == "float32"
        if not (fits and training and layer.trainable and mask is None and private_layers.uses_own_rows(layer)):
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
