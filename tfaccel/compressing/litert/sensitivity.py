"""The sensitivity of each layer to int8, and how many of the most sensitive stay in float."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tfaccel.compressing.litert.layer_cost import LayerCost
from tfaccel.compressing.litert.selective import SelectiveQuantizer
from tfaccel.errors import CompressionError

# The numbers of float layers to try, in this order.
_TRIED = (0, 1, 2, 3, 5, 8, 13, 21, 34)


class Sensitivity:
    """Measures layers one by one, on first use.

    Args:
        make_quantizer: makes the quantizer of chosen layers.
        drop_of: how much worse the metric of a LiteRT file is than the float model's.
        highest_drop_of: the upper bound of that drop's confidence interval.
        get_error: the error of its outputs against the float model's.
        progress: called with a line before each step.
    """

    def __init__(
        self,
        make_quantizer: Callable[[], SelectiveQuantizer],
        *,
        drop_of: Callable[[bytes], float],
        highest_drop_of: Callable[[bytes], float],
        get_error: Callable[[bytes], float],
        progress: Callable[[str], None],
    ) -> None:
        self._make_quantizer = make_quantizer
        self._get_drop = drop_of
        self._get_highest_drop = highest_drop_of
        self._error_of = get_error
        self._progress = progress

    @functools.cached_property
    def costs(self) -> tuple[LayerCost, ...]:
        """The metric drop of each layer that can be quantized, largest first."""
        costs = []
        for layer, operations in self._quantizer.layers.items():
            self._progress(f"sensitivity: {layer} alone in int8")
            try:
                content = self._quantizer.quantize([layer])
            except CompressionError:
                continue  # It cannot be quantized, and stays in float anyway.
            error = self._error_of(content)
            if error > 0:
                cost = LayerCost(layer=layer, operations=operations, drop=self._get_drop(content), output_error=error)
                costs.append(cost)
        return tuple(sorted(costs, key=lambda cost: (cost.drop, cost.output_error), reverse=True))

    def mixed(self, max_drop: float) -> tuple[bytes, tuple[str, ...]]:
        """int8 with as few of the most sensitive layers in float as the limit allows, from none to half of them.

        Takes the first number whose drop is within the limit with confidence, or, if there are too few examples for
        that, the first whose estimate is.

        Returns:
            The file, and the layers in float.

        Raises:
            CompressionError: for a model with fewer than two such layers.
        """
        costs, quantizer = self.costs, self._quantizer
        if len(costs) < 2:
            raise CompressionError(
                f"`mixed` needs at least two layers that can be quantized, and this model has {len(costs)}. Use int8."
            )
        tried: list[tuple[bytes, tuple[str, ...]]] = []
        for number in [count for count in _TRIED if count <= len(costs) // 2]:
            kept = tuple(cost.layer for cost in costs[:number])
            self._progress(f"mixed: {number} of {len(costs)} layers in float")
            content = quantizer.quantize([layer for layer in quantizer.layers if layer not in kept])
            tried.append((content, kept))
            if self._get_highest_drop(content) <= max_drop:
                return content, kept
        return next((one for one in tried if self._get_drop(one[0]) <= max_drop), tried[-1])

    @functools.cached_property
    def _quantizer(self) -> SelectiveQuantizer:
        return self._make_quantizer()
