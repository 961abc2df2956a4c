"""One conversion of a SavedModel to LiteRT by TensorFlow's converter, in the calling process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.training.private.private_tensorflow import one_scale_per_kernel


@dataclass(frozen=True)
class Conversion:
    """One conversion: what to convert, and how.

    Args:
        folder: the SavedModel.
        method: "float32", "float16", "dynamic", "int8" or "int16x8".
        rows_file: a `.npz` file of representative examples, written by `write_rows`; "" for none.
        order: input names, in the order that the converter expects.
        one_scale: one scale per kernel instead of one per channel.
        signature: the only signature to convert; "" for all.
    """

    folder: str
    method: str
    rows_file: str = ""
    order: Sequence[str] = ()
    one_scale: bool = False
    signature: str = ""


def write_rows(path: str, rows: Sequence[Any]) -> None:
    """Writes representative examples: arrays by name, of shape (1, ...)."""
    np.savez(path, **{f"{number}:{name}": array for number, row in enumerate(rows) for name, array in row.items()})


class Converter:
    """TensorFlow's converter; calibrates the last conversion only once."""

    def __init__(self) -> None:
        self._debugger: tuple[Conversion, Any] | None = None

    def content(self, conversion: Conversion, kept: Sequence[str] | None) -> bytes:
        """The bytes of the LiteRT file.

        Args:
            conversion: what is converted, and how.
            kept: operations to keep in float (selective quantization); None to quantize all.

        Raises:
            Exception: of many types, if the model cannot be converted.
        """
        if kept is None:
            return bytes(_converter(conversion).convert())
        options = tf.lite.experimental.QuantizationDebugOptions
        if self._debugger is None or self._debugger[0] != conversion:
            converter = _converter(conversion)
            debugger = tf.lite.experimental.QuantizationDebugger(converter=converter, debug_options=options())
            self._debugger = conversion, debugger
        debugger = self._debugger[1]
        debugger.options = options(denylisted_nodes=list(kept))
        return bytes(debugger.get_nondebug_quantized_model())


def _converter(conversion: Conversion) -> Any:
    keys = [conversion.signature] if conversion.signature else None
    converter = tf.lite.TFLiteConverter.from_saved_model(conversion.folder, signature_keys=keys)
    if conversion.signature:
        converter.experimental_enable_resource_variables = False
    ops, method = tf.lite.OpsSet, conversion.method
    converter.target_spec.supported_ops = [ops.TFLITE_BUILTINS]
    if conversion.rows_file:
        converter.representative_dataset = lambda: _rows(conversion)
    if method != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if method == "float16":
        converter.target_spec.supported_types = [tf.float16]
    elif method == "int8":
        converter.target_spec.supported_ops = [ops.TFLITE_BUILTINS_INT8, ops.TFLITE_BUILTINS]
    elif method == "int16x8":
        both = ops.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        converter.target_spec.supported_ops = [both, ops.TFLITE_BUILTINS]
    if conversion.one_scale:
        one_scale_per_kernel(converter)
    return converter


def _rows(conversion: Conversion) -> Iterator[list[np.ndarray]]:
    with np.load(conversion.rows_file, allow_pickle=False) as arrays:
        for number in range(len(arrays.files) // len(conversion.order)):
            yield [arrays[f"{number}:{name}"] for name in conversion.order]
