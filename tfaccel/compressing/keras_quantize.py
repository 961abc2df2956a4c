"""Keras's own quantization, for models that stay in Keras: int8 and int4 weights, GPTQ and AWQ.

Sources: https://keras.io/guides/quantization_overview/; Frantar et al., GPTQ: accurate post-training quantization for
generative pre-trained transformers, 2022, https://arxiv.org/abs/2210.17323; Lin et al., AWQ: activation-aware weight
quantization for LLM compression and acceleration, 2023, https://arxiv.org/abs/2306.00978
"""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfaccel.errors import CompressionError, in_one_line
from tfaccel.training.private.private_api import all_layers
from tfaccel.training.private.private_layers import calibrating, saving_zero_points

_TAKEN = "Dense, EinsumDense, Embedding and ReversibleEmbedding"
_CALIBRATED = {"gptq": keras.quantizers.GPTQConfig, "awq": keras.quantizers.AWQConfig}  # block by block
_BITS = 4
_SHOWN_CHARACTERS = 250


def quantize_in_keras(model: keras.Model, mode: str, rows: Sequence[Mapping[str, np.ndarray]] = ()) -> tuple[str, ...]:
    """Quantizes a model in place.

    Args:
        model: a built model.
        mode: "int8", "int4", "gptq" or "awq" (both 4 bits).
        rows: examples for "gptq" and "awq", arrays by name of shape (1, ...).

    Returns:
        Notes on it, one line each.
    """
    saved = _saved_layers(model)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # Keras warns about each layer that has nothing to quantize.
        try:
            if mode in _CALIBRATED:
                config, layers = _calibration(mode, model, rows, saved)
                with calibrating(layers):
                    model.quantize(mode, config=config, filters=lambda layer: layer in layers)
            else:
                model.quantize(mode, filters=lambda layer: layer in saved)
        except (ValueError, TypeError, RuntimeError) as error:
            text = _cause(error)
            raise CompressionError(f"Keras cannot quantize this model ({mode}): {text}") from error
    layers = [layer for layer in all_layers(model) if not isinstance(layer, keras.Model) and layer.weights]
    quantized = [layer for layer in layers if getattr(layer, "quantization_mode", None) is not None]
    if not quantized:
        kinds = ", ".join(sorted({type(layer).__name__ for layer in layers}))
        raise CompressionError(
            f"Keras quantizes {_TAKEN} ({mode}), and this model has none, or only inside other layers, where they "
            f"cannot be reloaded. Received layers: {kinds}. Use a LiteRT method, such as int8."
        )
    return (f"{len(quantized)} of {len(layers)} layers with weights are quantized by Keras",)


def save_in_keras(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Saves a model for deployment, without its optimizer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.save(path)
            keras.models.load_model(path, compile=False, safe_mode=False).save(path)
        except (ValueError, TypeError, RuntimeError, AttributeError, KeyError) as error:
            text = _cause(error)
            raise CompressionError(
                f"Keras cannot save this model and load it again ({text}). Give its own classes `get_config` and "
                "`keras.saving.register_keras_serializable()`, or use a LiteRT method, such as int8."
            ) from error


def save_quantized(model: keras.Model, path: str | os.PathLike[str]) -> None:
    """Saves a quantized model, and checks that it is the same when it is loaded again."""
    with saving_zero_points(all_layers(model)):
        model.save(path)
    loaded = load_quantized(path)
    for old, new in zip(model.variables, loaded.variables, strict=True):
        if not np.array_equal(keras.ops.convert_to_numpy(old), keras.ops.convert_to_numpy(new)):
            raise CompressionError(
                f"Keras does not load the quantized model as it was: {new.path} differs. Use a LiteRT method, such as "
                "int8."
            )


def load_quantized(path: str | os.PathLike[str]) -> keras.Model:
    """Loads a model that was saved after quantization."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns about missing entries that such a file does not need.
        try:
            return keras.models.load_model(path, compile=False, safe_mode=False)
        except (ValueError, TypeError) as error:
            text = _cause(error)
            raise CompressionError(
                f"Keras cannot load the quantized model again ({text}): layers created inside a custom class are not "
                "saved as quantized. Use a LiteRT method, such as int8."
            ) from error


def _cause(error: BaseException) -> str:
    """Keras's error message, without the configuration before it."""
    text = in_one_line(error)
    return (text.rpartition("Exception encountered: ")[2] or text)[:_SHOWN_CHARACTERS]


def _calibration(
    mode: str, model: keras.Model, rows: Sequence[Mapping[str, np.ndarray]], saved: Sequence[keras.layers.Layer]
) -> tuple[Any, list[keras.layers.Layer]]:
    """The configuration of GPTQ or AWQ, with tokens to calibrate with; and the layers that are quantized.

    These are those of the sequence of blocks. Others would be saved without their weights.
    """
    structure = model.get_quantization_layer_structure(mode)
    if structure is None or not rows or len(rows[0]) != 1:
        raise CompressionError(
            f"{mode.upper()} needs a token embedding followed by a stack of blocks, which the model has to name: "
            "override `get_quantization_layer_structure` in its class, or use keras_int4."
        )
    tokens = [next(iter(row.values()))[0] for row in rows]
    if tokens[0].ndim != 1 or not np.issubdtype(tokens[0].dtype, np.integer):
        raise CompressionError(
            f"{mode.upper()} calibrates with rows of token ids. Received: {tokens[0].dtype} of shape "
            f"{tokens[0].shape}. Use keras_int4."
        )
    config = _CALIBRATED[mode](
        dataset=tokens,
        tokenizer=str,
        weight_bits=_BITS,
        num_samples=len(tokens),
        sequence_length=len(tokens[0]),
        group_size=-1,
    )
    of_blocks = [layer for block in structure["sequential_blocks"] for layer in (block, *all_layers(block))]
    kinds = (keras.layers.Dense, keras.layers.EinsumDense)
    return config, [layer for layer in saved if isinstance(layer, kinds) and layer in of_blocks]


def _saved_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Layers whose quantization is saved: those of models, not those nested in other layers."""
    found: list[keras.layers.Layer] = []
    for layer in model.layers:
        found += _saved_layers(layer) if isinstance(layer, keras.Model) else [layer]
    return found
