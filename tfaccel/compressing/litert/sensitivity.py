"""int8 for some layers and float32 for the others: how sensitive each layer is, and which ones stay in float.

The quantization debugger of TensorFlow's converter quantizes chosen operations.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass

import keras

from tfaccel.compressing.litert.conversion import ConversionError
from tfaccel.compressing.litert.file import named_operations
from tfaccel.compressing.litert.post_training import Converter, Rows
from tfaccel.compressing.litert.unsupported_layers import get_layer
from tfaccel.compressing.variant import LayerCost
from tfaccel.errors import CompressionError

# The numbers of float layers to try, in this order.
_TRIED = (0, 1, 2, 3, 5, 8, 13, 21, 34)
# Operations that only move data: they take the dtype of their neighbours, and cost no accuracy.
_MOVE_NAMES = """
    RESHAPE TRANSPOSE CONCATENATION PAD STRIDED_SLICE SLICE GATHER PACK UNPACK SPLIT EXPAND_DIMS SQUEEZE SHAPE QUANTIZE
    DEQUANTIZE CAST RESIZE_NEAREST_NEIGHBOR
"""
_MOVES = frozenset(_MOVE_NAMES.split())


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
        self._outputs = defaultdict[str, list[str]](list)
        self.layers = defaultdict[str, Counter[str]](Counter)
        converter = converter.without_loops
        for operation, names in named_operations(converter.float_content):
            if operation not in _MOVES:
                path = get_layer(names, model)
                self._outputs[path].append(names[0])
                self.layers[path][operation] += 1
        self._converter, self._conversion = converter, converter.prepared("int8", rows)

    def quantize(self, layers: Collection[str]) -> bytes:
        """The model with these layers in int8 and all others in float32."""
        kept = [name for layer, names in self._outputs.items() if layer not in layers for name in names]
        try:
            return self._converter.quantize(self._conversion, kept)
        except ConversionError as error:
            raise CompressionError(f"Nothing in {', '.join(layers)} can be quantized: {error}") from error


@dataclass
class Sensitivity:
    """Measures layers one by one, on first use.

    Args:
        get_quantizer: makes the quantizer of chosen layers, once.
        drop_of: how much worse the metric of a LiteRT file is than the float model's.
        highest_drop_of: the upper bound of that drop's confidence interval.
        get_error: the error of its outputs against the float model's.
        progress: called with a line before each step.
    """

    get_quantizer: Callable[[], SelectiveQuantizer]
    drop_of: Callable[[bytes], float]
    highest_drop_of: Callable[[bytes], float]
    get_error: Callable[[bytes], float]
    progress: Callable[[str], None]

    @functools.cached_property
    def costs(self) -> tuple[LayerCost, ...]:
        """The metric drop of each layer that can be quantized, largest first."""
        costs, quantizer = [], self.get_quantizer()
        for layer, operations in quantizer.layers.items():
            self.progress(f"sensitivity: {layer} alone in int8")
            try:
                content = quantizer.quantize([layer])
            except CompressionError:
                continue  # It cannot be quantized, and stays in float anyway.
            error = self.get_error(content)
            if error > 0:
                cost = LayerCost(layer=layer, operations={**operations}, drop=self.drop_of(content), output_error=error)
                costs.append(cost)
        return tuple(sorted(costs, key=lambda cost: (cost.drop, cost.output_error), reverse=True))

    def mixed(self, max_drop: float) -> tuple[bytes, tuple[str, ...]]:
        """int8 with as few of the most sensitive layers in float as the limit allows, from none to half of them.

        Takes the first number whose drop is within the limit with confidence, or, if there are too few examples for
        that, the first whose estimate is.

        Returns:
            The file, and the layers in float.
        """
        costs, quantizer = self.costs, self.get_quantizer()
        if len(costs) < 2:
            raise CompressionError(
                f"`mixed` needs at least two layers that can be quantized, and this model has {len(costs)}. Use int8."
            )
        tried: list[tuple[bytes, tuple[str, ...]]] = []
        for number in [count for count in _TRIED if count <= len(costs) // 2]:
            kept = tuple(cost.layer for cost in costs[:number])
            self.progress(f"mixed: {number} of {len(costs)} layers in float")
            content = quantizer.quantize([layer for layer in quantizer.layers if layer not in kept])
            tried.append((content, kept))
            if self.highest_drop_of(content) <= max_drop:
                return content, kept
        return next((one for one in tried if self.drop_of(one[0]) <= max_drop), tried[-1])
