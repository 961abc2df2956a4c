"""Quantization of weights to int8 or int4 by LiteRT's own quantizer, with one scale for each channel or block."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from tfaccel.compressing.litert.file import dense_layers
from tfaccel.compressing.litert.post_training import quiet_conversion
from tfaccel.errors import CompressionError, VersionError

_PACKAGE = "litert_quantizer"
BLOCK = 32  # weights along the inputs of a unit that share a scale


def check_quantizer() -> None:
    """Raises VersionError if LiteRT's quantizer is not installed."""
    _module("quantizer")


def quantize_weights(content: bytes, *, num_bits: int) -> bytes:
    """A LiteRT file with integer weights, one scale for each channel, which are dequantized to float32 before use.

    Args:
        content: the file in float32.
        num_bits: 8 or 4.

    Raises:
        CompressionError: if LiteRT's quantizer cannot process the file.
        VersionError: if it is not installed.
    """
    return _quantized(content, getattr(_module("recipe"), f"weight_only_wi{num_bits}_afp32")(), num_bits=num_bits)


def quantize_blocks(content: bytes) -> tuple[bytes, str]:
    """A LiteRT file with int4 weights: in dense layers, with one scale for each block of 32.

    LiteRT computes such layers with activations that are quantized to int8 at run time. Other layers, and those whose
    number of inputs is no multiple of 32, are as after `quantize_weights`.

    Args:
        content: the file in float32.

    Returns:
        The file, and which layers have blocks.

    Raises:
        CompressionError: if no layer can have blocks, or LiteRT's quantizer cannot process the file.
        VersionError: if it is not installed.
    """
    layers = dense_layers(content)
    fitting = [name for name, inputs in layers.items() if inputs is not None and inputs % BLOCK == 0]
    if not fitting:
        raise CompressionError(
            f"weight_int4_blocks needs a dense layer whose number of inputs is a multiple of {BLOCK}. Use weight_int4."
        )
    manager, names = _module("recipe_manager").RecipeManager(), _module("qtyping")
    manager.add_weight_only_config(regex=".*", operation_name=names.TFLOperationName.ALL_SUPPORTED, num_bits=4)
    for name in fitting:
        manager.add_dynamic_config(
            regex=f"^{re.escape(name)};",
            operation_name=names.TFLOperationName.FULLY_CONNECTED,
            num_bits=4,
            granularity=names.QuantGranularity.BLOCKWISE_32,
        )
    note = (
        f"{len(fitting)} of {len(layers)} dense layers in blocks of {BLOCK}; the others have a scale for each channel"
    )
    return _quantized(content, manager.get_quantization_recipe(), num_bits=4), note


def _quantized(content: bytes, recipe: Any, *, num_bits: int) -> bytes:
    try:
        with quiet_conversion(), _without_monitor():
            quantizer = _module("quantizer").Quantizer(bytearray(content), recipe)
            return bytes(quantizer.quantize(enable_progress_bar=False, enable_progress_report=False).quantized_model)
    except (ValueError, RuntimeError, KeyError) as error:
        text = " ".join(str(error).split())[:300]
        raise CompressionError(f"LiteRT's quantizer cannot process this model ({num_bits} bits): {text}") from error


@contextlib.contextmanager
def _without_monitor() -> Iterator[None]:
    """Stops the progress-bar monitor thread that the quantizer starts without showing a bar."""
    try:
        yield
    finally:
        bars = import_module("tqdm").tqdm
        if bars.monitor is not None:
            bars.monitor.exit()
            bars.monitor = None


def _module(name: str) -> Any:
    try:
        return import_module(f"{_PACKAGE}.{name}")
    except ImportError as error:
        raise VersionError(
            f"Weight-only quantization needs `litert-quantizer` ({error}). Install it: pip install litert-quantizer"
        ) from error
