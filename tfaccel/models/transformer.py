"""Transformer blocks for encoders and decoders, and token embeddings."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from tfaccel.models.attention import Attention


@keras.saving.register_keras_serializable(package="tfaccel")
class TokenEmbedding(keras.layers.Layer):
    """The sum of token and position embeddings.

    Args:
        num_tokens: size of the vocabulary.
        max_length: number of positions.
        width: size of the vectors.
        dropout: dropout rate.

    Example:
        >>> TokenEmbedding(10, max_length=4, width=8)(ops.zeros((2, 4), "int32")).shape
        TensorShape([2, 4, 8])
    """

    def __init__(self, num_tokens: int, *, max_length: int, width: int, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._settings = {"num_tokens": num_tokens, "max_length": max_length, "width": width, "dropout": dropout}
        policy, small = self.dtype_policy, keras.initializers.RandomNormal(stddev=0.05)
        table = {"embeddings_initializer": small, "dtype": policy}
        self.tokens = keras.layers.Embedding(num_tokens, width, **table, name="tokens")
        self.positions = keras.layers.Embedding(max_length, width, **table, name="positions")
        self.dropout = keras.layers.Dropout(dropout, dtype=policy)

    def build(self, input_shape: Any) -> None:
        """Builds both embedding tables."""
        self.tokens.build(input_shape)
        self.positions.build(input_shape)

    def call(self, tokens: Any, first_position: Any = 0, training: bool | None = None) -> Any:
        """Vectors of shape (batch, length, width) for tokens of shape (batch, length)."""
        # A slice has a dense gradient. A lookup's would have separate rows per replica, which Adam squares one by one.
        size = (tokens.shape[1], self._settings["width"])
        positions = ops.slice(ops.convert_to_tensor(self.positions.embeddings), (first_position, 0), size)
        return self.dropout(self.tokens(tokens) + ops.cast(positions, self.compute_dtype), training=training)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the tokens, plus the width."""
        return (*input_shape, self._settings["width"])

    def get_config(self) -> dict[str, Any]:
        """Returns the config for `from_config`."""
        return {**super().get_config(), **self._settings}


@keras.saving.register_keras_serializable(package="tfaccel")
class TransformerBlock(keras.layers.Layer):
    """Pre-norm Transformer block: self-attention, optional cross-attention to a context, and a feed-forward network.

    Args:
        num_heads: number of attention heads.
        has_context: whether to attend to a context, as in the decoder of an encoder-decoder model.
        dropout: dropout rate of each residual branch.
        remat: recompute activations in the backward pass; dropout is excluded, so that it is drawn once.

    Reference:
        Xiong et al., On layer normalization in the Transformer architecture, 2020, https://arxiv.org/abs/2002.04745

    Example:
        >>> TransformerBlock(num_heads=2)(ops.ones((1, 3, 8)), attention_mask=ops.ones((1, 1, 3, 3), "bool")).shape
        TensorShape([1, 3, 8])
    """

    def __init__(
        self, num_heads: int, *, has_context: bool = False, dropout: float = 0.0, remat: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._settings = {"num_heads": num_heads, "has_context": has_context, "dropout": dropout, "remat": remat}
        policy = self.dtype_policy
        self.attention = Attention(num_heads, dtype=policy, name="attention")
        self.attention_norm = keras.layers.LayerNormalization(epsilon=1e-5, dtype=policy, name="attention_norm")
        self.dense_norm = keras.layers.LayerNormalization(epsilon=1e-5, dtype=policy, name="dense_norm")
        if has_context:
            self.context_attention = Attention(num_heads, dtype=policy, name="context_attention")
            self.context_norm = keras.layers.LayerNormalization(epsilon=1e-5, dtype=policy, name="context_norm")
        self.dropout = keras.layers.Dropout(dropout, dtype=policy)

    def build(self, x_shape: Any, context_shape: Any = None) -> None:
        """Builds all sublayers; the feed-forward network is four times as wide inside."""
        del context_shape
        width, policy = x_shape[-1], self.dtype_policy
        self.wide = keras.layers.Dense(4 * width, activation="gelu", dtype=policy, name="wide")
        self.narrow = keras.layers.Dense(width, dtype=policy, name="narrow")
        self.wide.build((None, None, width))
        self.narrow.build((None, None, 4 * width))
        for part in (self.attention_norm, self.dense_norm, self.attention):
            part.build((None, None, width))
        if self._settings["has_context"]:
            self.context_norm.build((None, None, width))
            self.context_attention.build((None, None, width))

    def call(
        self,
        x: Any,
        context: Any = None,
        *,
        attention_mask: Any = None,
        context_attention_mask: Any = None,
        training: bool | None = None,
    ) -> Any:
        """Applies the block to whole sequences; masks are True where allowed: (batch or 1, 1, queries, keys)."""
        x = x + self.dropout(self._part(self._self_attention, training, x, mask=attention_mask), training=training)
        if context is not None:
            found = self._part(self._context_attention, training, x, context, mask=context_attention_mask)
            x = x + self.dropout(found, training=training)
        return x + self.dropout(self._part(self._dense, training, x), training=training)

    def step(self, x: Any, kept: tuple[Any, Any], position: Any, context: tuple[Any, Any, Any] | None = None) -> Any:
        """Applies the block to one more position.

        Args:
            x: its input, of shape (batch, 1, width).
            kept: cache of the keys and values of earlier positions: (batch, max_length, num_heads, head_width).
            position: its index, a scalar.
            context: keys, values and mask of the context.

        Returns:
            The output, and the updated cache.
        """
        normed = self.attention_norm(x)
        new = self.attention.keys_and_values(normed)
        start = (0, position, 0, 0)
        keys, values = (
            ops.slice_update(old, start, ops.cast(one, old.dtype)) for old, one in zip(kept, new, strict=True)
        )
        mask = (ops.arange(keys.shape[1]) <= position)[None, None, None, :]
        x = x + self.attention.attend(normed, keys, values, mask)
        if context is not None:
            x = x + self.context_attention.attend(self.context_norm(x), *context)
        return x + self._dense(x), (keys, values)

    def room(self, batch_size: int, max_length: int, width: int) -> tuple[Any, Any]:
        """An empty cache of keys and values, for `step`."""
        num_heads = self._settings["num_heads"]
        shape = (batch_size, max_length, num_heads, width // num_heads)
        return ops.zeros(shape, self.compute_dtype), ops.zeros(shape, self.compute_dtype)

    def _part(self, calculate: Any, training: bool | None, *inputs: Any, mask: Any = None) -> Any:
        def part(*inputs: Any) -> Any:  # The mask is not an input: booleans have no gradients.
            return calculate(*inputs, mask)

        # Not `tfaccel.layers.rematerialize`, which is TensorFlow's: Keras on JAX trains these blocks too. No part has
        # what `keras.remat` treats differently: moving statistics, tables, masks attached to tensors.
        return keras.remat(part)(*inputs) if self._settings["remat"] and training else part(*inputs)

    def _self_attention(self, x: Any, mask: Any) -> Any:
        normed = self.attention_norm(x)
        return self.attention(normed, normed, attention_mask=mask)

    def _context_attention(self, x: Any, context: Any, mask: Any) -> Any:
        return self.context_attention(self.context_norm(x), context, attention_mask=mask)

    def _dense(self, x: Any, mask: Any = None) -> Any:
        del mask
        return self.narrow(self.wide(self.dense_norm(x)))

    def compute_output_shape(self, x_shape: Any, context_shape: Any = None) -> Any:
        """The shape of the input."""
        del context_shape
        return x_shape

    def get_config(self) -> dict[str, Any]:
        """Returns the config for `from_config`."""
        return {**super().get_config(), **self._settings}
