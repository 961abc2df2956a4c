"""The nouns `Variant`, one smaller version of a model as a file, and `VariantResult`, what was measured of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Self

from tfaccel.errors import CompressionError
from tfaccel.files import finite
from tfaccel.records import Record
from tfaccel.short_repr import noun

LITERT_SUFFIX = ".tflite"
KERAS_SUFFIX = ".keras"


class FiniteRecord(Record):
    """A record that becomes JSON values that every reader takes."""

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values; NaN and infinity become None."""
        found: dict[str, Any] = finite(super().to_json())
        return found


@noun
class Variant(FiniteRecord):
    """One smaller version of a model (or the float model, as the reference), as a file.

    Args:
        name: its name in tables, such as "int8" or "prune+int8".
        method: its compression method, such as "int8"; "float32" for the float model.
        path: its file: `.tflite`, or `.keras` for a model that stays in Keras.
        notes: one line each, such as the source of representative data, or what stayed in float.
        metrics: name -> value of what was measured while it was made, such as the metric of the fake-quantized
            model after training.
        float_layers: names of the layers that were deliberately kept in float.

    Example:
        >>> Variant(name="int8", method="int8", path="runs/digits/variants/int8.tflite").is_litert
        True
    """

    name: str
    method: str
    path: str
    notes: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    float_layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("name", "method"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise CompressionError(f"A variant's {name} must be a text. Received: {name}={value!r}.")
        object.__setattr__(self, "path", str(self.path))
        object.__setattr__(self, "notes", tuple(self.notes))
        object.__setattr__(self, "float_layers", tuple(self.float_layers))
        if Path(self.path).suffix not in (LITERT_SUFFIX, KERAS_SUFFIX):
            raise CompressionError(
                f"A variant's file ends in {LITERT_SUFFIX} or {KERAS_SUFFIX}. Received: path={self.path!r}."
            )

    @property
    def is_litert(self) -> bool:
        """Whether LiteRT runs it; otherwise Keras does."""
        return Path(self.path).suffix == LITERT_SUFFIX

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The variant that `to_json` gave."""
        return super().from_json({**data, "metrics": _with_nan(data["metrics"])})


@noun
class Latency(FiniteRecord):
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


@noun
class DropInterval(FiniteRecord):
    """Confidence interval of the drop of a metric on examples from the same distribution.

    The float model and the variant are evaluated on the same examples (a paired comparison).

    Attributes:
        low: lower bound, with the requested confidence.
        high: upper bound, with the same confidence.
        num_examples: number of held-out examples.
        num_needed: how many examples with the same outcome would bring `high` below the limit; None if none would.

    Example:
        >>> DropInterval.from_json(DropInterval(low=0.0, high=math.inf, num_examples=1, num_needed=None).to_json())
        DropInterval(low=0.0, high=inf, num_examples=1, num_needed=None)
    """

    low: float
    high: float
    num_examples: int
    num_needed: int | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The interval that `to_json` gave."""
        low, high = data["low"], data["high"]
        bounds = {"low": -math.inf if low is None else low, "high": math.inf if high is None else high}
        return super().from_json({**data, **bounds})


@noun
class LayerCost(FiniteRecord):
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


@noun
class VariantResult(FiniteRecord):
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

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The result that `to_json` gave."""
        agreement = math.nan if data["agreement"] is None else data["agreement"]
        return super().from_json({**data, "metrics": _with_nan(data["metrics"]), "agreement": agreement})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VariantResult) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]


def _with_nan(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in metrics.items()}
