"""The private API of Keras's `MultiHeadAttention` that computes attention from projected queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from tfaccel.tested_versions import private_part
from tfaccel.training.steps.overrides import keeps_methods

_COMPUTE = "_compute_attention"


def computes_keras_attention(layer: keras.layers.Layer) -> bool:
    """Whether a layer is a `MultiHeadAttention` that does not override how Keras computes attention."""
    return keeps_methods(layer, keras.layers.MultiHeadAttention, _COMPUTE)


def wants_flash_attention(layer: keras.layers.MultiHeadAttention) -> bool:
    """Whether a layer asks for flash attention, which Keras refuses on TensorFlow."""
    return bool(private_part(layer, "_flash_attention"))


def attends_over(layer: keras.layers.MultiHeadAttention, *, axes: tuple[int, ...]) -> bool:
    """Whether a built layer attends over these axes of its inputs."""
    return tuple(private_part(layer, "_attention_axes")) == axes


def scale(layer: keras.layers.MultiHeadAttention) -> float:
    """The factor of the scores of queries and keys."""
    return float(private_part(layer, "_inverse_sqrt_key_dim"))


def drops_scores(layer: keras.layers.MultiHeadAttention) -> bool:
    """Whether a layer drops attention scores while it trains."""
    return private_part(layer, "_dropout") > 0.0


def shares(layer: keras.layers.MultiHeadAttention, scores: Any, query: Any, value: Any, **given: Any) -> Any:
    """The softmax of scores `(batch, heads, queries, keys)` in a layer with dropout: masked, then dropped."""
    mask = given.get("attention_mask")
    if given.get("use_causal_mask"):
        causal = private_part(layer, "_compute_causal_mask")(query, value)
        mask = causal if mask is None else keras.ops.logical_and(keras.ops.cast(mask, "bool"), causal)
    found = private_part(layer, "_masked_softmax")(scores, mask)
    return private_part(layer, "_dropout_layer")(found, training=given.get("training"))


def keras_attention(layer: keras.layers.MultiHeadAttention, *arguments: Any, **options: Any) -> Any:
    """Attention as Keras computes it; returns the outputs and the scores, or None."""
    return private_part(type(layer), _COMPUTE)(layer, *arguments, **options)


def attributes(compute: Callable[..., Any]) -> dict[str, Any]:
    """Attributes that make a layer compute attention with `compute(query, key, value, **options)`."""

    def by_position(query: Any, key: Any, value: Any, *arguments: Any, **options: Any) -> Any:
        names = ("attention_mask", "training", "return_attention_scores")  # Keras passes these by position
        return compute(query, key, value, **dict(zip(names, arguments, strict=False)), **options)

    return {_COMPUTE: by_position}
