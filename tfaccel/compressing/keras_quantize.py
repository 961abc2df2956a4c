"""Keras's own quantization, for models that stay in Keras: int8 and int4 weights, and GPTQ.

Sources: https://keras.io/guides/quantization_overview/ and Frantar et al., GPTQ: accurate post-training quantization
for generative pre-trained transformers, 2022, https://arxiv.org/abs/2210.17323
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfaccel.errors import CompressionError
from tfaccel.models.transformer import TokenEmbedding, TransformerBlock
from tfaccel.training.private_api import all_layers

_TAKEN = "Dense, EinsumDense, Embedding and ReversibleEmbedding"
_GPTQ_BITS = 4


def quantize_in_keras(model: keras.Model, mode: str, rows: Sequence[Mapping[str, np.ndarray]] = ()) -> tuple[str, ...]:
    """Quantizes a model in place.

    Arguments:
        model: a built model.
        mode: "int8", "int4" or "gptq" (4 bits).
        rows: examples for "gptq", arrays by name of shape (1, ...).

    Returns:
        What is to be known of it, one line each.

    Raises:
        CompressionError: if no layer of the model can be quantized so.
    """
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # Keras warns of each layer that has nothing to quantize.
        try:
            if mode == "gptq":
                model.quantize("gptq", config=_gptq_config(model, rows))
            else:
                model.quantize(mode)
        except (ValueError, TypeError, RuntimeError) as error:
            text = " ".join(str(error).split())[:300]
            raise CompressionError(f"Keras cannot quantize this model ({mode}): {text}") from error
    layers = [layer for layer in all_layers(model) if not isinstance(layer, keras.Model) and layer.weights]
    quantized = [layer for layer in layers if getattr(layer, "quantization_mode", None) is not None]
    if not quantized:
        kinds = ", ".join(sorted({type(layer).__name__ for layer in layers}))
        raise CompressionError(
            f"Keras quantizes {_TAKEN} ({mode}), and this model has none. Received layers: {kinds}. Use a form of "
            "LiteRT, such as int8."
        )
    return (f"{len(quantized)} of {len(layers)} layers with weights are quantized by Keras",)


def _gptq_config(model: keras.Model, rows: Sequence[Mapping[str, np.ndarray]]) -> Any:
    """What GPTQ needs to know: the blocks, one after the other, and tokens to calibrate them with."""
    structure = _block_structure(model)
    if structure is None or not rows or len(rows[0]) != 1:
        raise CompressionError(
            "GPTQ is for a stack of Transformer blocks behind one embedding of tokens, and this model is none that is "
            "known. Override `get_quantization_layer_structure` in the model's class, or use keras_int4."
        )
    tokens = [next(iter(row.values()))[0] for row in rows]
    if tokens[0].ndim != 1 or not np.issubdtype(tokens[0].dtype, np.integer):
        raise CompressionError(
            f"GPTQ calibrates with rows of tokens. Received: {tokens[0].dtype} of shape {tokens[0].shape}. Use "
            "keras_int4."
        )
    return keras.quantizers.GPTQConfig(
        dataset=tokens, tokenizer=str, weight_bits=_GPTQ_BITS, num_samples=len(tokens),
        sequence_length=len(tokens[0]), group_size=-1, quantization_layer_structure=structure,
    )  # fmt: skip


def _block_structure(model: keras.Model) -> dict[str, Any] | None:
    own = model.get_quantization_layer_structure("gptq")
    if own is not None:
        return dict(own)
    embeddings = [layer for layer in all_layers(model) if isinstance(layer, TokenEmbedding)]
    blocks = [layer for layer in all_layers(model) if isinstance(layer, TransformerBlock)]
    if len(embeddings) != 1 or not blocks or any(block.get_config()["has_context"] for block in blocks):
        return None
    return {"pre_block_layers": embeddings, "sequential_blocks": blocks}
