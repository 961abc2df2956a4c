"""Multi-head attention with reusable keys and values."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="tfaccel")
class Attention(keras.layers.Layer):
    """Multi-head attention.

    `keras.layers.MultiHeadAttention` computes keys and values inside its call; here they are available separately, so
    that text can be generated token by token without recomputing the prefix.

    Args:
        num_heads: number of heads; it must divide the width of the inputs.

    Reference:
        Vaswani et al., Attention is all you need, 2017, https://arxiv.org/abs/1706.03762

    Example:
        >>> layer = Attention(num_heads=2)
        >>> layer(ops.ones((1, 3, 8)), ops.ones((1, 5, 8))).shape
        TensorShape([1, 3, 8])
    """

    def __init__(self, num_heads: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads

    def build(self, x_shape: Any, context_shape: Any = None) -> None:
        """Builds the four projections; the context must be as wide as the inputs."""
        del context_shape
        width = x_shape[-1]
        if width % self.num_heads:
            raise ValueError(f"`num_heads` must divide the width. Received: num_heads={self.num_heads}, width={width}.")
        for name in ("query", "key", "value"):
            heads = (None, self.num_heads, width // self.num_heads)
            layer = keras.layers.EinsumDense("abc,cde->abde", heads, bias_axes="de", dtype=self.dtype_policy, name=name)
            layer.build((None, None, width))
            setattr(self, f"{name}_projection", layer)
        self.output_projection = keras.layers.EinsumDense(
            "abde,dec->abc", (None, width), bias_axes="c", dtype=self.dtype_policy, name="output"
        )
        self.output_projection.build((None, None, self.num_heads, width // self.num_heads))

    def keys_and_values(self, context: Any) -> tuple[Any, Any]:
        """Keys and values of a context, each of shape (batch, length, num_heads, head_width)."""
        return self.key_projection(context), self.value_projection(context)

    def attend(self, x: Any, keys: Any, values: Any, mask: Any = None) -> Any:
        """Attends from `x` to keys. `mask` is True where allowed and broadcasts to (batch, 1, queries, keys)."""
        found = ops.dot_product_attention(self.query_projection(x), keys, values, mask=mask)
        return self.output_projection(found)

    def call(self, x: Any, context: Any, attention_mask: Any = None) -> Any:
        """Attends from `x`, of shape (batch, length, width), to a context of shape (batch, context_length, width)."""
        return self.attend(x, *self.keys_and_values(context), mask=attention_mask)

    def get_config(self) -> dict[str, Any]:
        """Returns the config for `from_config`."""
        return {**super().get_config(), "num_heads": self.num_heads}


def causal_mask(length: int) -> Any:
    """True where a position may attend: to itself and earlier ones; shape (1, 1, length, length).

    Example:
        >>> ops.convert_to_numpy(causal_mask(3))[0, 0].astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    positions = ops.arange(length)
    return (positions[:, None] >= positions[None, :])[None, None]
