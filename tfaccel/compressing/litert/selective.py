"""int8 for some layers and float32 for the others, with the quantization debugger of TensorFlow's converter."""

from __future__ import annotations

from collections.abc import Collection

import keras

from tfaccel.compressing.litert.conversion_child import ConversionError
from tfaccel.compressing.litert.file import named_operations
from tfaccel.compressing.litert.post_training import Converter, Rows
from tfaccel.compressing.litert.unsupported_layers import get_layer
from tfaccel.errors import CompressionError

# Operations that only move data: they take the dtype of their neighbours, and cost no accuracy.
_MOVES = frozenset(
    {
        "RESHAPE",
        "TRANSPOSE",
        "CONCATENATION",
        "PAD",
        "STRIDED_SLICE",
        "SLICE",
        "GATHER",
        "PACK",
        "UNPACK",
        "SPLIT",
        "EXPAND_DIMS",
        "SQUEEZE",
        "SHAPE",
        "QUANTIZE",
        "DEQUANTIZE",
        "CAST",
        "RESIZE_NEAREST_NEIGHBOR",
    }
)


class SelectiveQuantizer:
    """Quantizes chosen layers of a model to int8; calibrates only once.

    Args:
        converter: the model's converter.
        model: the model.
        rows: representative examples.

    Attributes:
        layers: path of each layer with operations -> name of an operation -> their number.
    """

    def __init__(self, converter: Converter, model: keras.Model, rows: Rows) -> None:
        self._outputs: dict[str, list[str]] = {}
        self.layers: dict[str, dict[str, int]] = {}
        converter = converter.without_loops
        for operation, names in named_operations(converter.float_content):
            if operation in _MOVES:
                continue
            path = get_layer(names, model)
            self._outputs.setdefault(path, []).append(names[0])
            kinds = self.layers.setdefault(path, {})
            kinds[operation] = kinds.get(operation, 0) + 1
        self._converter, self._conversion = converter, converter.prepared("int8", rows)

    def quantize(self, layers: Collection[str]) -> bytes:
        """The model with these layers in int8 and all others in float32.

        Raises:
            CompressionError: if there is no such layer, or none of their operations can be quantized.
        """
        unknown = [layer for layer in layers if layer not in self._outputs]
        if unknown:
            raise CompressionError(f"The model has no layer {unknown[0]!r}. Layers: {', '.join(self._outputs)}.")
        kept = [name for layer, names in self._outputs.items() if layer not in layers for name in names]
        try:
            return self._converter.quantize(self._conversion, kept)
        except ConversionError as error:
            raise CompressionError(f"Nothing in {', '.join(layers)} can be quantized: {error}") from error
