"""The exact GELU with a gradient in closed form, which computes the normal distribution once instead of twice.

Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016, https://arxiv.org/abs/1606.08415
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


def fused_gelu(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make a layer with `activation="gelu"` use `gelu`; {} for other layers."""
    return {"activation": _activation} if getattr(layer, "activation", None) is keras.activations.gelu else {}


def _activation(x: Any, approximate: bool = False) -> Any:
    return keras.activations.gelu(x, approximate=approximate) if approximate else gelu(x)


@tf.custom_gradient
def gelu(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """`x` times the probability that a normally distributed number is less than `x`, as `keras.activations.gelu`.

    Args:
        x: a float tensor.

    Example:
        >>> round(float(gelu(tf.constant(1.0))), 4)
        0.8413
    """
    below = 0.5 * tf.math.erfc(x * -math.sqrt(0.5))

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        density = tf.exp(-0.5 * tf.square(x)) / math.sqrt(2.0 * math.pi)
        return upstream * (below + x * density)

    return x * below, gradient
