"""Attention as two batched matrix products, with one transposition of query, key, value and result.

Keras's einsums transpose again in the forward and in the backward pass.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import keras
import tensorflow as tf

from tfaccel.hardware.detect import detect_hardware
from tfaccel.training.private import private_layers

_MULTIPLY = ("AVX512_BF16", "AMX_BF16", "BF16")  # instruction sets for bfloat16
_MASKED_SCORE = -0.7 * 3.38953e38  # as in Keras; -inf would make the softmax of a row without any key NaN


def fused_attention(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make a `MultiHeadAttention` use `attention` where it can; {} for other layers.

    Left to Keras are attention over several axes or another one than the first, float64, and calls that return scores.
    """
    if not private_layers.computes_keras_attention(layer) or private_layers.wants_flash_attention(layer):
        return {}

    def compute(query: Any, key: Any, value: Any, **given: Any) -> Any:
        fits = len(query.shape) == 4 and private_layers.attends_over(layer, axes=(1,))
        is_known = all(one.dtype == query.dtype and one.dtype != tf.float64 for one in (query, key, value))
        if not (fits and is_known) or given.get("return_attention_scores"):
            return private_layers.keras_attention(layer, query, key, value, **given)
        if private_layers.drops_scores(layer):
            return _with_dropout(layer, query, key, value, **given), None
        mask = given.get("attention_mask")
        mask = None if mask is None else tf.cast(mask, tf.bool)
        scale, is_causal = private_layers.attention_scale(layer), bool(given.get("use_causal_mask"))
        return attention(query, key, value, mask, is_causal=is_causal, scale=scale), None

    return private_layers.attention_attributes(compute)


def attention(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    mask: tf.Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> tf.Tensor:
    """Scaled dot-product attention; the softmax is computed in float32.

    Args:
        query: shape `(batch, queries, heads, size)`.
        key, value: shapes `(batch, keys, heads, size)` and `(batch, keys, heads, value_size)`, of the query's dtype.
        mask: bool, shape `(batch, queries, keys)`, `(1, queries, keys)` or `(batch, heads, queries, keys)`: True where
            a query may use a key. A query without any key uses all of them alike.
        is_causal: whether a query may only use keys up to its own position.
        scale: the factor of the scores, by default the inverse square root of `size`.

    Returns:
        Shape `(batch, queries, heads, value_size)`.

    Example:
        >>> attention(tf.ones([1, 2, 1, 4]), tf.ones([1, 3, 1, 4]), tf.ones([1, 3, 1, 5])).shape.as_list()
        [1, 2, 1, 5]
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if math.frexp(scale)[0] == 0.5:  # a power of two: exact, and a query has fewer values than the scores
        scores = tf.cast(_products(query * tf.cast(scale, query.dtype), key), tf.float32)
    else:
        scores = tf.cast(_products(query, key), tf.float32) * scale
    if is_causal:
        causal = tf.linalg.band_part(tf.ones(tf.shape(scores)[2:], tf.bool), -1, 0)
        mask = causal if mask is None else tf.logical_and(causal, mask)
    if mask is not None:
        mask = mask[:, tf.newaxis] if mask.shape.rank == 3 else mask
        scores = tf.where(mask, scores, _MASKED_SCORE)
    return _selected(tf.cast(tf.nn.softmax(scores), value.dtype), value)


def _with_dropout(layer: keras.layers.Layer, query: Any, key: Any, value: Any, **given: Any) -> tf.Tensor:
    """Attention that drops scores, whose softmax Keras computes in the layer's own dtype."""
    scores = _products(query * tf.cast(private_layers.attention_scale(layer), query.dtype), key)
    return _selected(private_layers.attention_shares(layer, scores, query, value, **given), value)


def _products(query: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    query, key = (tf.transpose(one, [0, 2, 1, 3]) for one in (query, key))
    return _product(query, key, transpose_b=True)


def _selected(shares: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    return tf.transpose(_product(shares, tf.transpose(value, [0, 2, 1, 3])), [0, 2, 1, 3])


def _product(one: tf.Tensor, other: tf.Tensor, *, transpose_b: bool = False) -> tf.Tensor:
    """A batched product; its sums are never rounded to bfloat16 on the way."""
    if one.dtype == tf.bfloat16 and _rounds_sums():
        wide = tf.matmul(tf.cast(one, tf.float32), tf.cast(other, tf.float32), transpose_b=transpose_b)
        return tf.cast(wide, one.dtype)
    return tf.matmul(one, other, transpose_b=transpose_b)


@functools.cache
def _rounds_sums() -> bool:
    """Whether TensorFlow adds in bfloat16: on CPUs that do not multiply in it."""
    return not tf.config.list_physical_devices("GPU") and not set(_MULTIPLY) & set(detect_hardware().cpu_features)
