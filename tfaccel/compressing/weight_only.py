"""Weight-only quantization to int8 or int4, with float32 arithmetic, by LiteRT's own quantizer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from tfaccel.compressing.litert.post_training import quiet_conversion
from tfaccel.errors import CompressionError, VersionError

_PACKAGE = "litert_quantizer"


def check_quantizer() -> None:
    """Raises VersionError if LiteRT's quantizer is not installed."""
    _module("quantizer")


def quantize_weights(content: bytes, *, num_bits: int) -> bytes:
    """A LiteRT file with integer weights, which are dequantized to float32 before use.

    Args:
        content: the file in float32.
        num_bits: 8 or 4.

    Raises:
        CompressionError: if LiteRT's quantizer cannot process the file.
        VersionError: if it is not installed.
    """
    recipe = getattr(_module("recipe"), f"weight_only_wi{num_bits}_afp32")()
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
