"""The noun `LayerCost`: the metric drop of quantizing one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfaccel.records import Record
from tfaccel.short_repr import short_repr


@short_repr
@dataclass(frozen=True, kw_only=True)
class LayerCost(Record):
    """The metric drop with one layer alone in int8.

    Attributes:
        layer: its path in the model.
        operations: name -> number of its LiteRT operations.
        drop: how much worse the metric is, in its own unit.
        output_error: relative root mean square error of the model's outputs.

    Example:
        >>> LayerCost(layer="block_0/conv2d", operations={"CONV_2D": 1}, drop=0.0, output_error=0.02).drop
        0.0
    """

    layer: str
    operations: Mapping[str, int] = field(hash=False)
    drop: float
    output_error: float
