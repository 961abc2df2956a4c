"""Encoder and decoder of sequence-to-sequence models, optionally copying tokens, and loading of finished text runs."""

from __future__ import annotations

import os
from typing import Any

import keras
from keras import ops

from tfaccel.data.texts.vocabulary import Vocabulary
from tfaccel.errors import RunDirError
from tfaccel.models.transformer import TransformerStack, causal_mask
from tfaccel.remote import readable_path

_MIN_PROBABILITY = 1e-9


@keras.saving.register_keras_serializable(package="tfaccel")
class TextEncoder(TransformerStack):
    """Transformer blocks over a whole text; token 0 is padding and masked.

    The arguments are those of `TransformerStack`.

    Example:
        >>> TextEncoder(10, max_length=4, width=8, num_blocks=1)(ops.ones((2, 4), "int32")).shape
        TensorShape([2, 4, 8])
    """

    def call(self, tokens: Any, training: bool | None = None) -> Any:
        """Encodes tokens; returns shape (batch, length, width)."""
        return self.read(tokens, padding_mask(tokens), training)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the tokens, plus the width."""
        return (*input_shape, self.width)


@keras.saving.register_keras_serializable(package="tfaccel")
class TextDecoder(TransformerStack):
    """Transformer blocks that generate text and attend to an encoder's output.

    The arguments are those of `TransformerStack`.

    Reference:
        Vaswani et al., Attention is all you need, 2017, https://arxiv.org/abs/1706.03762
    """

    has_context = has_logits = True

    def build(  # type: ignore[override]  # Keras names the shapes after the arguments of `call`
        self, tokens_shape: Any, context_shape: Any, source_shape: Any
    ) -> None:
        """Builds all sublayers; the context must have the same width."""
        del context_shape, source_shape
        super().build(tokens_shape)

    def call(self, tokens: Any, context: Any, source: Any, training: bool | None = None) -> Any:
        """Scores (float32) of the token that follows each one; their softmax gives probabilities.

        Args:
            tokens: the text so far, of shape (batch, length).
            context: the encoder's output, of shape (batch, source_length, width).
            source: the source token ids, 0 for padding.
            training: whether to apply dropout.
        """
        x = self.embedding(self._known(tokens), training=training)
        mask, context_mask = causal_mask(ops.shape(tokens)[1]), padding_mask(source)
        for block in self.blocks:
            x = block(x, context, attention_mask=mask, context_attention_mask=context_mask, training=training)
        return self._scores(self.norm(x), context, source)

    def start(self, context: Any, source: Any) -> Any:
        """The initial state for `step`."""
        return {
            "kept": self.room(context.shape[0]),
            "read": [block.context_attention.keys_and_values(context) for block in self.blocks],
            "context": context,
            "source": source,
        }

    def step(self, tokens: Any, position: Any, state: Any) -> tuple[Any, Any]:
        """Scores after one more token per row, of shape (batch, num_scores), and the new state."""
        x = self.embedding(self._known(tokens)[:, None], first_position=position)
        kept, mask = [], padding_mask(state["source"])
        for block, old, read in zip(self.blocks, state["kept"], state["read"], strict=True):
            x, new = block.step(x, old, position, (*read, mask))
            kept.append(new)
        return self._scores(self.norm(x), state["context"], state["source"])[:, 0], {**state, "kept": kept}

    def _known(self, tokens: Any) -> Any:
        return tokens

    def _scores(self, x: Any, context: Any, source: Any) -> Any:
        del context, source
        return self.logits(x)

    def compute_output_shape(self, tokens_shape: Any, context_shape: Any, source_shape: Any) -> Any:
        """The shape of the tokens, plus the number of scores."""
        del context_shape, source_shape
        return (*tokens_shape, self.num_tokens)


@keras.saving.register_keras_serializable(package="tfaccel")
class CopyingDecoder(TextDecoder):
    """A pointer-generator decoder: it generates each token from its vocabulary or copies it from the source.

    A learned gate mixes the two; a separate attention chooses the position to copy from. Out-of-vocabulary tokens of
    the source have ids after those of the vocabulary. Scores are log-probabilities.

    Args:
        num_copied: max out-of-vocabulary tokens per source.
        **kwargs: arguments of `TextDecoder`.

    Reference:
        See et al., Get to the point: summarization with pointer-generator networks, 2017,
            https://arxiv.org/abs/1704.04368
    """

    def __init__(self, *args: Any, num_copied: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_copied = self._settings["num_copied"] = num_copied
        self.pointer = keras.layers.Dense(self.width, dtype="float32", name="pointer")
        self.gate = keras.layers.Dense(1, dtype="float32", name="gate")

    def build(  # type: ignore[override]  # Keras names the shapes after the arguments of `call`
        self, tokens_shape: Any, context_shape: Any, source_shape: Any
    ) -> None:
        """Builds all sublayers."""
        super().build(tokens_shape, context_shape, source_shape)
        for part in (self.pointer, self.gate):
            part.build((*tokens_shape, self.width))

    def _known(self, tokens: Any) -> Any:
        return known_tokens(tokens, self.num_tokens)

    def _scores(self, x: Any, context: Any, source: Any) -> Any:
        context = ops.cast(context, "float32")
        places = ops.einsum("btw,bsw->bts", self.pointer(x), context) / self.width**0.5
        places = ops.softmax(ops.where(padding_mask(source)[:, 0], places, -1e9))
        copied = ops.einsum("bts,bsv->btv", places, ops.one_hot(source, self.num_tokens + self.num_copied))
        gate = ops.sigmoid(self.gate(x))
        written = ops.pad(ops.softmax(self.logits(x)), ((0, 0), (0, 0), (0, self.num_copied)))
        return ops.log(gate * written + (1.0 - gate) * copied + _MIN_PROBABILITY)

    def compute_output_shape(self, tokens_shape: Any, context_shape: Any, source_shape: Any) -> Any:
        """The shape of the tokens, plus the number of scores."""
        del context_shape, source_shape
        return (*tokens_shape, self.num_tokens + self.num_copied)


def known_tokens(tokens: Any, num_tokens: int) -> Any:
    """Replaces token ids from `num_tokens` up by 1, the unknown token.

    Example:
        >>> ops.convert_to_numpy(known_tokens(ops.array([3, 9]), 5)).tolist()
        [3, 1]
    """
    return ops.where(tokens < num_tokens, tokens, ops.ones_like(tokens))


def padding_mask(tokens: Any) -> Any:
    """True where a token is not padding; of shape (batch, 1, 1, length) for tokens of shape (batch, length)."""
    return ops.not_equal(tokens, 0)[:, None, None, :]


def load_text_model(run_dir: str | os.PathLike[str], *vocabularies: str) -> tuple[keras.Model, list[Vocabulary]]:
    """Loads `model.keras` and the named vocabularies.

    Args:
        run_dir: folder of the run.
        vocabularies: names of JSON files in it, without the extension.

    Raises:
        DataError: if a vocabulary is missing or invalid.
    """
    folder = readable_path(run_dir, RunDirError)
    found = [Vocabulary.load(folder / f"{name}.json") for name in vocabularies]
    return keras.models.load_model(folder / "model.keras", compile=False), found
