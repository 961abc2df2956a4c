"""The nouns `Latency` and `VariantResult`: the measurements of one variant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from tfaccel.compressing.comparison.drop_interval import DropInterval
from tfaccel.compressing.variant import Variant
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
class VariantResult:
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
        data = {**asdict(self), "variant": self.variant.to_json(), "latencies": [asdict(one) for one in self.latencies]}
        data["metrics"] = {name: _finite(value) for name, value in self.metrics.items()}
        interval = None if self.drop_interval is None else self.drop_interval.to_json()
        return {**data, "agreement": _finite(self.agreement), "drop_interval": interval}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The result that `to_json` gave."""
        fields = dict(data)
        fields["variant"] = Variant.from_json(fields["variant"])
        fields["latencies"] = tuple(Latency(**one) for one in fields["latencies"])
        fields["metrics"] = {name: math.nan if v is None else v for name, v in fields["metrics"].items()}
        fields["agreement"] = math.nan if fields["agreement"] is None else fields["agreement"]
        if fields.get("drop_interval") is not None:
            fields["drop_interval"] = DropInterval.from_json(fields["drop_interval"])
        return cls(**fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VariantResult) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
