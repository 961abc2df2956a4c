"""The nouns `Latency` and `VariantResult`: the measurements of one variant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tfaccel.compressing.comparison.drop_interval import DropInterval
from tfaccel.compressing.variant import Variant
from tfaccel.records import Record
from tfaccel.short_repr import short_repr


@short_repr
@dataclass(frozen=True, kw_only=True)
class Latency:
    """The latency of one example.

    Attributes:
        num_threads: the runtime's thread count.
        p50_seconds: the median.
        p95_seconds: the 95th percentile.
        num_calls: number of timed calls.
    """

    num_threads: int
    p50_seconds: float
    p95_seconds: float
    num_calls: int


@short_repr
@dataclass(frozen=True, kw_only=True)
class VariantResult(Record):
    """The measurements of one variant, or the cause of its failure.

    Attributes:
        variant: the variant.
        metrics: name -> value on held-out data.
        size_bytes: the size of its file.
        zipped_bytes: the size of its file when zipped.
        latencies: one for each thread count.
        peak_memory_bytes: peak memory added by loading and running it; None if unknown.
        num_operations: in its graph, without dtype conversions; None for a Keras model.
        float_operations: name -> number of operations that compute in float; None for a Keras model.
        agreement: with the float model on held-out data, 1 for identical; see `comparison.agreement`.
        drop_interval: confidence interval of the metric's drop; None if not requested.
        failure: why it could not be made or measured; "" if it did not fail.

    Example:
        >>> failed = VariantResult(variant=Variant(name="int8", method="int8", path="a.tflite"), failure="no such op")
        >>> VariantResult.from_json(failed.to_json()) == failed
        True
    """

    _ignores_others = True

    variant: Variant
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    size_bytes: int = 0
    zipped_bytes: int = 0
    latencies: tuple[Latency, ...] = ()
    peak_memory_bytes: int | None = None
    num_operations: int | None = None
    float_operations: Mapping[str, int] | None = field(default=None, hash=False)
    agreement: float = math.nan
    drop_interval: DropInterval | None = None
    failure: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "latencies", tuple(self.latencies))

    @property
    def best_seconds(self) -> float:
        """The lowest median latency over thread counts; NaN if none was measured."""
        return min((latency.p50_seconds for latency in self.latencies), default=math.nan)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; NaN and infinity become None."""
        metrics = {name: _finite(value) for name, value in self.metrics.items()}
        return {**super().to_json(), "metrics": metrics, "agreement": _finite(self.agreement)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The result that `to_json` gave."""
        metrics = {name: math.nan if value is None else value for name, value in data["metrics"].items()}
        agreement = math.nan if data["agreement"] is None else data["agreement"]
        return super().from_json({**data, "metrics": metrics, "agreement": agreement})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VariantResult) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
