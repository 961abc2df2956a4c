"""The noun `GateResult`: all forms of a model in one table, and which of them may take its place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tfaccel.compressing.layer_cost import LayerCost
from tfaccel.compressing.variant_result import VariantResult

# Medians that differ by less than this part count as equal: two runs of the same file do.
LATENCY_NOISE = 0.03
# Changes of a metric below this are rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class GateResult:
    """Every form of a model beside the float model, and the verdict.

    The smallest form whose metric is worse by at most `max_metric_drop` wins, if it is smaller than the float model; a
    pruned one is so only when zipped, which counts last.

    Attributes:
        metric: what the forms are judged by.
        lower_is_better: whether the metric falls when a model gets better.
        max_metric_drop: how much worse the metric may be, in its own unit; below 0 a gain is demanded.
        results: all forms; the first of each runtime is the float model.
        held_out: what the metric was measured on, in words.
        representative: what showed the ranges of the activations, in words; "" where nothing did.
        machine: what it was measured on.
        sensitivity: what each layer costs, the costliest first; empty where it was not asked for.

    Example:
        >>> GateResult(metric="accuracy", results=(), held_out="").winner is None
        True
    """

    metric: str
    lower_is_better: bool = False
    max_metric_drop: float = 0.01
    results: tuple[VariantResult, ...]
    held_out: str
    representative: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict, hash=False)
    sensitivity: tuple[LayerCost, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "results", tuple(self.results))
        object.__setattr__(self, "sensitivity", tuple(self.sensitivity))

    def float_result(self, result: VariantResult) -> VariantResult:
        """The float model in the runtime of a result."""
        return next(one for one in self.results if one.variant.is_litert == result.variant.is_litert)

    def value(self, result: VariantResult) -> float:
        """The metric of a form; NaN where it was not measured."""
        return result.metrics.get(self.metric, math.nan)

    def drop(self, result: VariantResult) -> float:
        """How much worse the metric is than the float model's, in its own unit; below 0 for a gain."""
        change = self.value(result) - self.value(self.results[0])
        return (change if self.lower_is_better else -change) + 0.0  # no minus before nothing

    def size_ratio(self, result: VariantResult) -> float:
        """Its size / the float model's in the same runtime."""
        return result.size_bytes / self.float_result(result).size_bytes

    def latency_ratio(self, result: VariantResult) -> float:
        """Its median latency / the float model's, each with the number of threads that suits it best."""
        return result.best_seconds / self.float_result(result).best_seconds

    def is_float(self, result: VariantResult) -> bool:
        """Whether it is the model as it was trained."""
        return self.float_result(result) is result

    def is_within(self, result: VariantResult) -> bool:
        """Whether the metric is not worse than allowed."""
        return not result.failure and self.drop(result) <= self.max_metric_drop + _ROUNDING

    def is_slower(self, result: VariantResult) -> bool:
        """Whether it is slower than the float model, by more than noise."""
        return self.latency_ratio(result) > 1 + LATENCY_NOISE

    @property
    def winner(self) -> VariantResult | None:
        """The smallest form that is within the limit and smaller than the float model; None if there is none."""
        passing = [one for one in self.results if self._may_win(one)]
        return min(passing, key=lambda one: (one.size_bytes, one.zipped_bytes, one.best_seconds), default=None)

    @property
    def fastest(self) -> VariantResult | None:
        """The fastest form within the limit; None where none is faster than the float model, by more than noise.

        One that stays in Keras must be faster than the float model in LiteRT, too, where that was measured.
        """
        passing = [one for one in self.results if self._may_be_fastest(one)]
        return min(passing, key=lambda one: one.best_seconds, default=None)

    def verdict(self, result: VariantResult) -> str:
        """What is to be said of one form."""
        if result.failure:
            return f"failed: {result.failure}"
        if self.is_float(result):
            return "the model as it was trained"
        of_float = self.float_result(result).variant.name
        slower = f"; slower than {of_float}, do not use it for speed" if self.is_slower(result) else ""
        return self._of_metric_and_size(result) + slower

    def summary(self) -> list[str]:
        """The verdict on all forms, in sentences."""
        best, fastest = self.winner, self.fastest
        limit = f"{self.metric} worse by {self.max_metric_drop:g} at most"
        if self.max_metric_drop < 0:
            limit = f"{self.metric} better by {-self.max_metric_drop:g} at least"
        if best is None:
            lines = [f"Do not compress: no form is within the limit ({limit}) and smaller than float32."]
        else:
            lines = [f"Smallest within the limit ({limit}): {self._of_winner(best)}"]
        if fastest is None:
            lines.append("For speed do not use any of them: none within the limit is faster than float32.")
        else:
            lines.append(
                f"Fastest within the limit: {fastest.variant.name}, {self.latency_ratio(fastest):.2f} of the time."
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """The fields, and what is derived from them, as JSON values."""
        fields = {name: getattr(self, name) for name in ("metric", "lower_is_better", "max_metric_drop", "held_out",
                                                         "representative")}  # fmt: skip
        best, fastest = self.winner, self.fastest
        return {
            **fields,
            "machine": dict(self.machine),
            "winner": None if best is None else best.variant.name,
            "fastest": None if fastest is None else fastest.variant.name,
            "summary": self.summary(),
            "results": [self._row(result) for result in self.results],
            "sensitivity": [cost.to_json() for cost in self.sensitivity],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The result that `to_json` gave; derived values are derived anew."""
        known = {name: value for name, value in data.items() if name in cls.__dataclass_fields__}
        names = VariantResult.__dataclass_fields__
        rows = [{name: value for name, value in row.items() if name in names} for row in data["results"]]
        known["results"] = tuple(map(VariantResult.from_json, rows))
        known["sensitivity"] = tuple(LayerCost(**cost) for cost in data["sensitivity"])
        return cls(**known)

    def _of_winner(self, best: VariantResult) -> str:
        of_float = self.float_result(best)
        name, zipped = of_float.variant.name, best.zipped_bytes / of_float.zipped_bytes
        text = f"{best.variant.name}, {self.size_ratio(best):.2f} of {name}, zipped {zipped:.2f}."
        if self.is_slower(best):
            text += f" It is slower than {name}, {self.latency_ratio(best):.2f} of the time: do not use it for speed."
        return text

    def _may_be_fastest(self, result: VariantResult) -> bool:
        if self.is_float(result) or not self.is_within(result):
            return False
        least = min(one.best_seconds for one in (self.results[0], self.float_result(result)))
        return result.best_seconds < (1 - LATENCY_NOISE) * least

    def _may_win(self, result: VariantResult) -> bool:
        return not self.is_float(result) and self.is_within(result) and self._is_smaller(result)

    def _is_smaller(self, result: VariantResult) -> bool:
        of_float = self.results[0]
        return result.size_bytes < of_float.size_bytes or result.zipped_bytes < of_float.zipped_bytes

    def _of_metric_and_size(self, result: VariantResult) -> str:
        if not self.is_within(result):
            drop = self.drop(result)
            if math.isnan(drop):
                return f"{self.metric} is not a number"
            return f"{self.metric} is worse by {drop:.4g}: too much" if drop > 0 else "gain too small"
        if not self._is_smaller(result):
            return f"not smaller than {self.results[0].variant.name}"
        of_float = self.results[0]
        only = f", smaller than {of_float.variant.name} only when zipped"
        zipped = only if result.size_bytes >= of_float.size_bytes else ""
        return ("smallest within the limit" if result is self.winner else "within the limit") + zipped

    def _row(self, result: VariantResult) -> dict[str, Any]:
        derived = {"drop": self.drop(result), "size_ratio": math.nan, "latency_ratio": math.nan}
        if not result.failure:
            derived["size_ratio"] = self.size_ratio(result)
            derived["latency_ratio"] = self.latency_ratio(result)
        derived = {name: value if math.isfinite(value) else None for name, value in derived.items()}  # type: ignore[misc]
        return {**result.to_json(), **derived, "verdict": self.verdict(result), "slower": self._is_known_slower(result)}

    def _is_known_slower(self, result: VariantResult) -> bool:
        return not result.failure and self.is_slower(result)
