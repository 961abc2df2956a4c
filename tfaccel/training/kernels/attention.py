"""Attention as two batched matrix products, with one transposition of query, key, value and result.

Keras's einsums transpose again in the forward and in the backward pass.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_attention


def fused_attention(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make a `MultiHeadAttention` use `attention`; {} for other layers, and with dropout of scores."""
    if not (private_attention.computes_keras_attention(layer) and private_attention.is_plain(layer)):
        return {}

    def compute(query: Any, key: Any, value: Any, **arguments: Any) -> Any:
        fits = len(query.shape) == 4 and not arguments.get("return_attention_scores")
        if not fits or arguments.get("attention_mask") is not None or arguments.get("use_causal_mask"):
            return private_attention.keras_attention(layer, query, key, value, **arguments)
        return attention(query, key, value), None

    return private_attention.attributes(compute)


def attention(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Scaled dot-product attention without a mask; the softmax is computed in float32.

    Args:
        query: shape `(batch, queries, heads, size)`.
        key, value: shapes `(batch, keys, heads, size)` and `(batch, keys, heads, value_size)`, of the query's dtype.

    Returns:
        Shape `(batch, queries, heads, value_size)`.

    Example:
        >>> attention(tf.ones([1, 2, 1, 4]), tf.ones([1, 3, 1, 4]), tf.ones([1, 3, 1, 5])).shape.as_list()
        [1, 2, 1, 5]
    """
    query, key, value = (tf.transpose(one, [0, 2, 1, 3]) for one in (query, key, value))
    scores = tf.cast(tf.matmul(query, key, transpose_b=True), tf.float32) / query.shape[-1] ** 0.5
    shares = tf.cast(tf.nn.softmax(scores), value.dtype)
    return tf.transpose(tf.matmul(shares, value), [0, 2, 1, 3])
