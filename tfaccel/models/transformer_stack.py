"""What an encoder, a decoder and a language model have in common: tokens in, Transformer blocks, a normalisation."""

from __future__ import annotations

from typing import Any

import keras

from tfaccel.models.transformer import TokenEmbedding, TransformerBlock


class TransformerStack(keras.layers.Layer):
    """The parts `embedding`, `blocks` and `norm`, of which a class of its own makes a model.

    Args:
        num_tokens: size of the vocabulary.
        max_length: of the texts.
        width: of the blocks.
        num_blocks: how many.
        dropout: part of the numbers that is dropped in training.
        remat: calculate inner values again in the backward pass.
        **kwargs: arguments of `keras.layers.Layer`.
    """

    has_context = False  # whether the blocks attend to what another stack read

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
        self._settings: dict[str, Any] = {
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

    def build_parts(self, tokens_shape: Any, *more: keras.layers.Layer) -> None:
        """Builds all parts for tokens of shape (batch, length), and more layers behind them."""
        self.embedding.build(tokens_shape)
        for part in (*self.blocks, self.norm, *more):
            part.build((*tokens_shape, self.width))

    def room(self, batch_size: int) -> list[tuple[Any, Any]]:
        """Keys and values of no position yet, for each block's `step`."""
        return [block.room(batch_size, self.max_length, self.width) for block in self.blocks]

    def get_config(self) -> dict[str, Any]:
        """What `from_config` takes."""
        return {**super().get_config(), **self._settings}


def heads(width: int) -> int:
    """The number of heads for a width: as many as have 32 numbers each, at least one.

    Example:
        >>> heads(128)
        4
    """
    return width // 32 if width >= 32 and width % 32 == 0 else 1
