"""The private API of Keras's `MultiHeadAttention` that computes attention from projected queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from tfaccel.tested_versions import private_part

_COMPUTE = "_compute_attention"


def computes_keras_attention(layer: keras.layers.Layer) -> bool:
    """Whether a layer is a `MultiHeadAttention` that does not override how Keras computes attention."""
    kind = keras.layers.MultiHeadAttention
    return isinstance(layer, kind) and private_part(type(layer), _COMPUTE) is private_part(kind, _COMPUTE)


def is_plain(layer: keras.layers.MultiHeadAttention) -> bool:
    """Whether a layer neither drops attention scores nor asks for flash attention, which Keras refuses here."""
    return not (private_part(layer, "_dropout") or private_part(layer, "_flash_attention"))


def keras_attention(layer: keras.layers.MultiHeadAttention, *arguments: Any, **options: Any) -> Any:
    """Attention as Keras computes it; returns the outputs and the scores, or None."""
    return private_part(type(layer), _COMPUTE)(layer, *arguments, **options)


def attributes(compute: Callable[..., Any]) -> dict[str, Any]:
    """Attributes that make a layer compute attention with `compute(query, key, value, **options)`."""

    def by_position(query: Any, key: Any, value: Any, *arguments: Any, **options: Any) -> Any:
        names = ("attention_mask", "training", "return_attention_scores")  # Keras passes these by position
        return compute(query, key, value, **dict(zip(names, arguments, strict=False)), **options)

    return {_COMPUTE: by_position}
