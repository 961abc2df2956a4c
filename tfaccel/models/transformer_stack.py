"""The base of encoder, decoder and language model: token embedding, Transformer blocks, final normalization."""

from __future__ import annotations

from typing import Any

import keras

from tfaccel.models.transformer import TokenEmbedding, TransformerBlock


class TransformerStack(keras.layers.Layer):
    """Base class with the sublayers `embedding`, `blocks` and `norm`.

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
        """Builds all sublayers for tokens of shape (batch, length), and the layers in `more`."""
        self.embedding.build(tokens_shape)
        for part in (*self.blocks, self.norm, *more):
            part.build((*tokens_shape, self.width))

    def room(self, batch_size: int) -> list[tuple[Any, Any]]:
        """An empty cache of keys and values for each block's `step`."""
        return [block.room(batch_size, self.max_length, self.width) for block in self.blocks]

    def get_config(self) -> dict[str, Any]:
        """Returns the config for `from_config`."""
        return {**super().get_config(), **self._settings}


def heads(width: int) -> int:
    """The number of attention heads for a width: one per 32 units if that divides it, otherwise one.

    Example:
        >>> heads(128)
        4
    """
    return width // 32 if width >= 32 and width % 32 == 0 else 1
