"""Language models: next-token prediction on whole sequences for training, and step by step for generation."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from tfaccel.models.attention import causal_mask
from tfaccel.models.transformer_stack import TransformerStack


@keras.saving.register_keras_serializable(package="tfaccel")
class TransformerLanguageModel(TransformerStack):
    """A decoder-only Transformer with a context of `max_length` positions.

    The arguments are those of `TransformerStack`.

    Example:
        >>> TransformerLanguageModel(10, max_length=4, width=8, num_blocks=1)(ops.zeros((2, 4), "int32")).shape
        TensorShape([2, 4, 10])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Logits stay float32 under mixed precision: 16 bits are too coarse for the loss.
        self.logits = keras.layers.Dense(self.num_tokens, dtype="float32", name="logits")

    def build(self, input_shape: Any) -> None:
        """Builds all sublayers."""
        self.build_parts(input_shape, self.logits)

    def call(self, tokens: Any, training: bool | None = None) -> Any:
        """Logits (float32) of the token that follows each one, of shape (batch, length, num_tokens)."""
        x, mask = self.embedding(tokens, training=training), causal_mask(tokens.shape[1])
        for block in self.blocks:
            x = block(x, attention_mask=mask, training=training)
        return self.logits(self.norm(x))

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
class LstmLanguageModel(keras.layers.Layer):
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

    def get_config(self) -> dict[str, Any]:
        """Returns the config for `from_config`."""
        return {**super().get_config(), **self._settings}
