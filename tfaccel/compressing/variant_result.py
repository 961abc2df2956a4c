"""The nouns `Latency` and `VariantResult`: what was measured of one form of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from tfaccel.compressing.drop_interval import DropInterval
from tfaccel.compressing.variant import Variant


@dataclass(frozen=True, kw_only=True)
class Latency:
    """How long one example takes.

    Attributes:
        num_threads: of the runtime.
        p50_seconds: the median.
        p95_seconds: what 95 of 100 calls stay below.
        num_calls: how many were timed.
    """

    num_threads: int
    p50_seconds: float
    p95_seconds: float
    num_calls: int


@dataclass(frozen=True, kw_only=True)
class VariantResult:
    """What was measured of one form of a model; of one that failed, the cause.

    Attributes:
        variant: which.
        metrics: name -> value on held-out data.
        size_bytes: of its file.
        zipped_bytes: of its file when zipped.
        latencies: one for each number of threads.
        peak_memory_bytes: what a process that loads and runs it needs more than one that does not; None if unknown.
        num_operations: in its graph, conversions of numbers left out; None for a Keras model.
        float_operations: name -> how many of them calculate with floats; None for a Keras model.
        agreement: with the float model on held-out data, 1 for the same; see `tfaccel.compressing.agreement`.
        drop_interval: between which bounds the drop of the metric lies; None where that was not asked.
        failure: why it could not be made or measured; "" if it could.

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
        """The lowest median latency over the numbers of threads; NaN if none was measured."""
        return min((latency.p50_seconds for latency in self.latencies), default=math.nan)

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; what is not a number becomes None."""
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
