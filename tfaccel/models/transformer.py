"""Transformer blocks with reusable keys and values, token embeddings, and language models for text generation."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


class SettingsLayer(keras.layers.Layer):
    """Base class of layers whose config is `_settings`, the arguments that they were made with."""

    _settings: dict[str, Any]

    def get_config(self) -> dict[str, Any]:
        """Returns the config for `from_config`."""
        return {**super().get_config(), **self._settings}


@keras.saving.register_keras_serializable(package="tfaccel")
class Attention(SettingsLayer):
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
        self._settings = {"num_heads": num_heads}

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


def causal_mask(length: Any) -> Any:
    """True where a position may attend: to itself and earlier ones; shape (1, 1, length, length).

    Example:
        >>> ops.convert_to_numpy(causal_mask(3))[0, 0].astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    positions = ops.arange(length)
    return (positions[:, None] >= positions[None, :])[None, None]


@keras.saving.register_keras_serializable(package="tfaccel")
class TokenEmbedding(SettingsLayer):
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
        size = (ops.shape(tokens)[1], self._settings["width"])
        positions = ops.slice(ops.convert_to_tensor(self.positions.embeddings), (first_position, 0), size)
        return self.dropout(self.tokens(tokens) + ops.cast(positions, self.compute_dtype), training=training)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the tokens, plus the width."""
        return (*input_shape, self._settings["width"])


@keras.saving.register_keras_serializable(package="tfaccel")
class TransformerBlock(SettingsLayer):
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


class TransformerStack(SettingsLayer):
    """Base class with the sublayers `embedding`, `blocks`, `norm` and, with `has_logits`, `logits`.

    Args:
        num_tokens: size of the vocabulary.
        max_length: max length of a text, in tokens.
        width: width of the blocks.
        num_blocks: number of blocks.
        dropout: dropout rate.
        remat: recompute the activations of each block in the backward pass.
        **kwargs: arguments of `keras.layers.Layer`.
    """

    has_context = False  # whether the blocks attend to an encoder's output
    has_logits = False

    def __init__(
        self,
        num_tokens: int,
        *,
        max_length: int,
        width: int,
        num_blocks: int,
        dropout: float = 0.0,
        remat: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_tokens, self.max_length, self.width = num_tokens, max_length, width
        self._settings = {
            "num_tokens": num_tokens,
            "max_length": max_length,
            "width": width,
            "num_blocks": num_blocks,
            "dropout": dropout,
            "remat": remat,
        }
        policy = self.dtype_policy
        self.embedding = TokenEmbedding(
            num_tokens, max_length=max_length, width=width, dropout=dropout, dtype=policy, name="embedding"
        )
        block: dict[str, Any] = {
            "num_heads": heads(width),
            "has_context": self.has_context,
            "dropout": dropout,
            "remat": remat,
        }
        self.blocks = [TransformerBlock(**block, dtype=policy, name=f"block_{n}") for n in range(num_blocks)]
        self.norm = keras.layers.LayerNormalization(epsilon=1e-5, dtype=policy, name="norm")
        if self.has_logits:  # They stay float32 under mixed precision: 16 bits are too coarse for the loss.
            self.logits = keras.layers.Dense(num_tokens, dtype="float32", name="logits")

    def build(self, input_shape: Any) -> None:
        """Builds all sublayers for tokens of shape (batch, length)."""
        self.embedding.build(input_shape)
        for part in (*self.blocks, self.norm, *([self.logits] if self.has_logits else [])):
            part.build((*input_shape, self.width))

    def read(self, tokens: Any, mask: Any, training: bool | None) -> Any:
        """The output of the last block for whole texts, normalized; of shape (batch, length, width)."""
        x = self.embedding(tokens, training=training)
        for block in self.blocks:
            x = block(x, attention_mask=mask, training=training)
        return self.norm(x)

    def room(self, batch_size: int) -> list[tuple[Any, Any]]:
        """An empty cache of keys and values for each block's `step`."""
        return [block.room(batch_size, self.max_length, self.width) for block in self.blocks]


def heads(width: int) -> int:
    """The number of attention heads for a width: one per 32 units if that divides it, otherwise one.

    Example:
        >>> heads(128)
        4
    """
    return width // 32 if width >= 32 and width % 32 == 0 else 1


@keras.saving.register_keras_serializable(package="tfaccel")
class TransformerLanguageModel(TransformerStack):
    """A decoder-only Transformer with a context of `max_length` positions.

    The arguments are those of `TransformerStack`.

    Example:
        >>> TransformerLanguageModel(10, max_length=4, width=8, num_blocks=1)(ops.zeros((2, 4), "int32")).shape
        TensorShape([2, 4, 10])
    """

    has_logits = True

    def call(self, tokens: Any, training: bool | None = None) -> Any:
        """Logits (float32) of the token that follows each one, of shape (batch, length, num_tokens)."""
        return self.logits(self.read(tokens, causal_mask(ops.shape(tokens)[1]), training))

    def start(self, batch_size: int) -> Any:
        """The initial state for `step`."""
        return self.room(batch_size)

    def step(self, tokens: Any, position: Any, state: Any) -> tuple[Any, Any]:
        """Logits after one more token per row, of shape (batch, num_tokens), and the new state.

        Args:
            tokens: token ids, of shape (batch,).
            position: their position in the sequence, below `max_length`.
            state: from the previous step.
        """
        x, kept = self.embedding(tokens[:, None], first_position=position), []
        for block, old in zip(self.blocks, state, strict=True):
            x, new = block.step(x, old, position)
            kept.append(new)
        return self.logits(self.norm(x))[:, 0], kept

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the tokens, plus the size of the vocabulary."""
        return (*input_shape, self.num_tokens)


@keras.saving.register_keras_serializable(package="tfaccel")
class LstmLanguageModel(SettingsLayer):
    """Stacked LSTM layers.

    Args:
        num_tokens: size of the vocabulary.
        width: units per layer.
        num_layers: number of LSTM layers.
        dropout: dropout rate after each LSTM layer.

    Example:
        >>> LstmLanguageModel(10, width=8, num_layers=2)(ops.zeros((2, 4), "int32")).shape
        TensorShape([2, 4, 10])
    """

    max_length = None  # unlimited context

    def __init__(self, num_tokens: int, *, width: int, num_layers: int, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._settings = {"num_tokens": num_tokens, "width": width, "num_layers": num_layers, "dropout": dropout}
        policy = self.dtype_policy
        self.embedding = keras.layers.Embedding(num_tokens, width, dtype=policy, name="embedding")
        self.cells = [
            keras.layers.LSTM(width, return_sequences=True, return_state=True, dtype=policy, name=f"lstm_{number}")
            for number in range(num_layers)
        ]
        self.dropout = keras.layers.Dropout(dropout, dtype=policy)
        self.logits = keras.layers.Dense(num_tokens, dtype="float32", name="logits")

    def build(self, input_shape: Any) -> None:
        """Builds all sublayers."""
        shape = (*input_shape, self._settings["width"])
        self.embedding.build(input_shape)
        for part in (*self.cells, self.logits):
            part.build(shape)

    def call(self, tokens: Any, training: bool | None = None) -> Any:
        """Logits (float32) of the token that follows each one, of shape (batch, length, num_tokens)."""
        x = self.embedding(tokens)
        for cell in self.cells:
            x = self.dropout(cell(x, training=training)[0], training=training)
        return self.logits(x)

    def start(self, batch_size: int) -> Any:
        """The initial state for `step`."""
        zeros = ops.zeros((batch_size, self._settings["width"]), self.compute_dtype)
        return [[zeros, zeros] for _ in self.cells]

    def step(self, tokens: Any, position: Any, state: Any) -> tuple[Any, Any]:
        """Logits after one more token per row, of shape (batch, num_tokens), and the new state."""
        del position
        x, kept = self.embedding(tokens[:, None]), []
        for cell, old in zip(self.cells, state, strict=True):
            x, *new = cell(x, initial_state=old)
            kept.append(new)
        return self.logits(x)[:, 0], kept

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the tokens, plus the size of the vocabulary."""
        return (*input_shape, self._settings["num_tokens"])
