"""What each layer in int8 costs, and how many of the costliest are kept in float."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tfaccel.compressing.layer_cost import LayerCost
from tfaccel.compressing.selective import SelectiveQuantizer
from tfaccel.errors import CompressionError

# How many layers are tried in float, one number after the other.
_TRIED = (0, 1, 2, 3, 5, 8, 13, 21, 34)


class Sensitivity:
    """Measures layers one by one, when it is first asked.

    Args:
        make_quantizer: makes what quantizes chosen layers.
        drop_of: how much worse the metric of a LiteRT file is than the float model's.
        highest_drop_of: the same, at the upper end of what the number of examples leaves open.
        error_of: how far its outputs are from the float model's.
        progress: called with a line before each step.
    """

    def __init__(
        self,
        make_quantizer: Callable[[], SelectiveQuantizer],
        *,
        drop_of: Callable[[bytes], float],
        highest_drop_of: Callable[[bytes], float],
        error_of: Callable[[bytes], float],
        progress: Callable[[str], None],
    ) -> None:
        self._make_quantizer = make_quantizer
        self._drop_of = drop_of
        self._highest_drop_of = highest_drop_of
        self._error_of = error_of
        self._progress = progress

    @functools.cached_property
    def costs(self) -> tuple[LayerCost, ...]:
        """What each layer costs that has a form in integers; the costliest comes first."""
        costs = []
        for layer, operations in self._quantizer.layers.items():
            self._progress(f"sensitivity: {layer} alone in int8")
            try:
                content = self._quantizer.quantize([layer])
            except CompressionError:
                continue  # It has no form in integers, and stays in float anyway.
            error = self._error_of(content)
            if error > 0:
                cost = LayerCost(layer=layer, operations=operations, drop=self._drop_of(content), output_error=error)
                costs.append(cost)
        return tuple(sorted(costs, key=lambda cost: (cost.drop, cost.output_error), reverse=True))

    def mixed(self, max_drop: float) -> tuple[bytes, tuple[str, ...]]:
        """int8 with as few of the costliest layers in float as the limit allows, from none to half of them.

        The first number wins that is surely within the limit; where there are too few examples for that, the first
        whose estimate is.

        Returns:
            The file, and the layers in float.

        Raises:
            CompressionError: for a model with less than two layers to choose from.
        """
        costs, quantizer = self.costs, self._quantizer
        if len(costs) < 2:
            raise CompressionError(
                f"`mixed` chooses among layers that have a form in integers, and this model has {len(costs)}. Use int8."
            )
        tried: list[tuple[bytes, tuple[str, ...]]] = []
        for number in [count for count in _TRIED if count <= len(costs) // 2]:
            kept = tuple(cost.layer for cost in costs[:number])
            self._progress(f"mixed: {number} of {len(costs)} layers in float")
            content = quantizer.quantize([layer for layer in quantizer.layers if layer not in kept])
            tried.append((content, kept))
            if self._highest_drop_of(content) <= max_drop:
                return content, kept
        return next((one for one in tried if self._drop_of(one[0]) <= max_drop), tried[-1])

    @functools.cached_property
    def _quantizer(self) -> SelectiveQuantizer:
        return self._make_quantizer()
