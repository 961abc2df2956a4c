"""The noun `CompressResult`: all variants of a model compared, the one that may replace it, and the table of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from tfaccel.compressing.variant import LayerCost, VariantResult
from tfaccel.files import finite
from tfaccel.records import Record
from tfaccel.short_repr import noun

# Medians that differ by less than this fraction count as equal: two runs of the same file do.
LATENCY_NOISE = 0.03
# A variant must be smaller than float32 by this fraction, as a file or zipped; variants within this fraction of the
# smallest count as equally small.
MIN_SAVING = 0.05
# A file may grow by this fraction in one of the two sizes and still count as no larger: names and tables differ.
_SIZE_NOISE = 0.01
# Lower agreement with the float model is reported: as good a model, but a different one.
_MIN_AGREEMENT = 0.95
# Changes of a metric below this are rounding.
_ROUNDING = 1e-9
# Headings of the table; "METRIC" stands for the metric's name.
HEADINGS = (
    "variant",
    "METRIC",
    "change",
    "size",
    "of\nfloat",
    "zipped",
    "threads:\np50 / p95",
    "of\nfloat",
    "memory",
    "in float",
    "agree-\nment",
    "result",
)


@noun
class CompressResult(Record):
    """Every variant of a model compared with the float model.

    The smallest variant whose metric is worse by at most `max_metric_drop` wins, if it saves `MIN_SAVING` of the float
    model's size, as a file or zipped, and grows in neither. File size counts first, then zipped size (a pruned model
    is smaller only when zipped), then latency. A variant does not win if the upper bound of its drop's confidence
    interval is above the limit.

    Attributes:
        metric: the metric that variants are compared by.
        lower_is_better: whether a lower metric is better.
        max_metric_drop: how much worse the metric may be, in its own unit; a negative value demands a gain.
        confidence: with which the drop must be within the limit; 0 to go by the estimate alone.
        results: all variants; the first of each runtime is the float model.
        held_out: description of the data that the metric was measured on.
        representative: description of the data that activations were calibrated with; "" for none.
        machine: the machine that it was measured on.
        sensitivity: drop of each layer alone in int8, largest first; empty if not requested.

    Example:
        >>> CompressResult(metric="accuracy", results=(), held_out="").winner is None
        True
    """

    _ignores_others = True

    metric: str
    lower_is_better: bool = False
    max_metric_drop: float = 0.01
    confidence: float = 0.0
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
        """The metric of a variant; NaN if not measured."""
        return result.metrics.get(self.metric, math.nan)

    def drop(self, result: VariantResult) -> float:
        """How much worse the metric is than the float model's, in its own unit; negative for a gain."""
        change = self.value(result) - self.value(self.results[0])
        return (change if self.lower_is_better else -change) + 0.0  # avoids -0.0

    def size_ratio(self, result: VariantResult) -> float:
        """Its size divided by the float model's in the same runtime."""
        return result.size_bytes / self.float_result(result).size_bytes

    def latency_ratio(self, result: VariantResult) -> float:
        """Its median latency divided by the float model's, each with its best number of threads."""
        return result.best_seconds / self.float_result(result).best_seconds

    def is_float(self, result: VariantResult) -> bool:
        """Whether it is the float model."""
        return self.float_result(result) is result

    def is_within(self, result: VariantResult) -> bool:
        """Whether the drop is within the limit, with enough examples to be sure."""
        return self._is_within_by_estimate(result) and not self.is_open(result)

    def is_open(self, result: VariantResult) -> bool:
        """Whether the drop is within the limit on these examples, but they are too few to be sure."""
        interval = result.drop_interval
        if not self.confidence or interval is None or not self._is_within_by_estimate(result):
            return False
        return interval.high > self.max_metric_drop + _ROUNDING

    @property
    def is_undecided(self) -> bool:
        """Whether no variant wins, but one might with more examples."""
        return self.winner is None and bool(self._open_and_smaller())

    def is_slower(self, result: VariantResult) -> bool:
        """Whether it is slower than the float model, by more than noise."""
        return self.latency_ratio(result) > 1 + LATENCY_NOISE

    @property
    def winner(self) -> VariantResult | None:
        """The smallest variant within the limit that is smaller than the float model; None if there is none."""
        passing = [one for one in self.results if not self.is_float(one) and self.is_within(one)]
        return self._smallest([one for one in passing if self._is_smaller(one)])

    @property
    def fastest(self) -> VariantResult | None:
        """The fastest variant within the limit; None if none is faster than the float model by more than noise.

        A Keras variant must also be faster than the float model in LiteRT, where that was measured.
        """
        passing = [one for one in self.results if self._may_be_fastest(one)]
        return min(passing, key=lambda one: one.best_seconds, default=None)

    def verdict(self, result: VariantResult) -> str:
        """The outcome for one variant, as a phrase."""
        if result.failure:
            return f"failed: {result.failure}"
        if self.is_float(result):
            return "the float model"
        of_float = self.float_result(result).variant.name
        slower = f"; slower than {of_float}, do not use it for speed" if self.is_slower(result) else ""
        return self._of_metric_and_size(result) + slower

    def summary(self) -> list[str]:
        """The outcome for all variants, in sentences."""
        best, fastest = self.winner, self.fastest
        limit = f"{self.metric} worse by {self.max_metric_drop:g} at most"
        if self.max_metric_drop < 0:
            limit = f"{self.metric} better by {-self.max_metric_drop:g} at least"
        if self.is_undecided:
            lines = [f"Too few examples to tell ({limit}, with {self.confidence:.0%} confidence)."]
        elif best is None:
            lines = [
                f"Do not compress: no variant is within the limit ({limit}) and at least {MIN_SAVING:.0%} smaller than "
                "float32, in its file or zipped."
            ]
        else:
            lines = [f"Smallest within the limit ({limit}): {self._of_winner(best)}"]
        lines += self._of_open_ones(best)
        if fastest is None:
            lines.append("For speed, use none of them: no variant within the limit is faster than float32.")
        else:
            lines.append(
                f"Fastest within the limit: {fastest.variant.name}, {self.latency_ratio(fastest):.2f} of its latency."
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """The fields and derived values as JSON values."""
        best, fastest = self.winner, self.fastest
        return {
            **super().to_json(),
            "winner": None if best is None else best.variant.name,
            "too_few_examples": self.is_undecided,
            "fastest": None if fastest is None else fastest.variant.name,
            "summary": self.summary(),
            "results": [self._row(result) for result in self.results],
        }

    def _of_winner(self, best: VariantResult) -> str:
        of_float = self.float_result(best)
        name, zipped = of_float.variant.name, best.zipped_bytes / of_float.zipped_bytes
        text = f"{best.variant.name}, {self.size_ratio(best):.2f} of {name}, zipped {zipped:.2f}."
        if self.is_slower(best):
            text += (
                f" It is slower than {name}, {self.latency_ratio(best):.2f} of its latency: do not use it for speed."
            )
        return text

    def _is_within_by_estimate(self, result: VariantResult) -> bool:
        return not result.failure and self.drop(result) <= self.max_metric_drop + _ROUNDING

    def _open_and_smaller(self) -> list[VariantResult]:
        return [one for one in self.results if not self.is_float(one) and self.is_open(one) and self._is_smaller(one)]

    def _of_open_ones(self, best: VariantResult | None) -> list[str]:
        """Reports the smallest variant that would win if there were enough examples."""
        smallest = self._smallest([one for one in (best, *self._open_and_smaller()) if one is not None])
        if smallest is None or smallest is best or smallest.drop_interval is None:
            return []
        interval = smallest.drop_interval
        would = "" if best is None else " would be smaller"
        enough = "No number of examples with the same outcome would be enough"
        if interval.num_needed is not None:
            enough = (
                f"About {max(interval.num_needed, interval.num_examples + 1)} with the same outcome would be enough"
            )
        return [
            f"{smallest.variant.name}{would}: its {self.metric} may be worse by up to {interval.high:.2g}, as far "
            f"as {interval.num_examples} examples can tell. {enough}. Give more validation data, allow more "
            "(max_metric_drop), or go by the estimate alone (confidence=0)."
        ]

    def _may_be_fastest(self, result: VariantResult) -> bool:
        if self.is_float(result) or not self.is_within(result):
            return False
        least = min(one.best_seconds for one in (self.results[0], self.float_result(result)))
        return result.best_seconds < (1 - LATENCY_NOISE) * least

    def _is_smaller(self, result: VariantResult) -> bool:
        """Whether it saves enough in one of the two sizes, and grows in neither."""
        ratios = self._size_ratios(result)
        return min(ratios) <= 1 - MIN_SAVING and max(ratios) <= 1 + _SIZE_NOISE

    def _size_ratios(self, result: VariantResult) -> tuple[float, float]:
        """Its size divided by the float model's in the first runtime: as a file, and zipped."""
        of_float = self.results[0]
        return result.size_bytes / of_float.size_bytes, result.zipped_bytes / of_float.zipped_bytes

    @staticmethod
    def _smallest(results: list[VariantResult]) -> VariantResult | None:
        """The smallest file; among equally small ones the smallest when zipped, and among those the fastest."""
        for name in ("size_bytes", "zipped_bytes"):
            least = min((getattr(one, name) for one in results), default=0)
            results = [one for one in results if getattr(one, name) * (1 - MIN_SAVING) <= least]
        return min(results, key=lambda one: one.best_seconds, default=None)

    def _of_metric_and_size(self, result: VariantResult) -> str:
        changed = ""
        if result.agreement < _MIN_AGREEMENT:
            changed = f"; agrees with {self.results[0].variant.name} in {result.agreement:.1%} only"
        if self.is_open(result) and result.drop_interval is not None:
            return f"too few examples to tell: may be worse by {result.drop_interval.high:.2g}{changed}"
        if not self.is_within(result):
            drop = self.drop(result)
            if math.isnan(drop):
                return f"{self.metric} is not a number"
            return f"{self.metric} is worse by {drop:.4g}: too much" if drop > 0 else "gain too small"
        name = self.results[0].variant.name
        if not self._is_smaller(result):
            return f"not at least {MIN_SAVING:.0%} smaller than {name}"
        zipped = f", smaller than {name} only when zipped" if self._size_ratios(result)[0] > 1 - MIN_SAVING else ""
        return ("smallest within the limit" if result is self.winner else "within the limit") + zipped + changed

    def _row(self, result: VariantResult) -> dict[str, Any]:
        failed = bool(result.failure)
        derived = {
            "drop": self.drop(result),
            "size_ratio": math.nan if failed else self.size_ratio(result),
            "latency_ratio": math.nan if failed else self.latency_ratio(result),
            "verdict": self.verdict(result),
            "slower": not failed and self.is_slower(result),
        }
        return {**result.to_json(), **finite(derived)}


def cells(found: CompressResult, result: VariantResult) -> list[str]:
    """The cells of one variant's row, in the order of the headings."""
    if result.failure:
        return [result.variant.name, *[""] * (len(HEADINGS) - 2), found.verdict(result)]
    is_float = found.is_float(result)
    change = found.value(result) - found.value(found.results[0])
    left = result.float_operations
    return [
        result.variant.name,
        f"{found.value(result):.4f}",
        "" if is_float else signed(change) + _interval_text(found, result),
        size_text(result.size_bytes),
        f"{found.size_ratio(result):.2f}",
        size_text(result.zipped_bytes),
        "\n".join(
            f"{one.num_threads}: {time_text(one.p50_seconds)} / {time_text(one.p95_seconds)}"
            for one in result.latencies
        ),
        f"{found.latency_ratio(result):.2f}",
        "" if result.peak_memory_bytes is None else size_text(result.peak_memory_bytes),
        "" if left is None else f"{sum(left.values())} of {result.num_operations}",
        "" if math.isnan(result.agreement) else f"{result.agreement:.4f}",
        found.verdict(result),
    ]


def get_notes(found: CompressResult, result: VariantResult) -> list[str]:
    """Notes on a variant: how it was made, and which operations stay in float."""
    lines = [f"{result.variant.name}: {note}." for note in result.variant.notes]
    left = result.float_operations
    if left and not found.is_float(result):
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(left.items()))
        lines.append(f"{result.variant.name}: in float are {kinds}.")
    return lines


def sensitivity_cells(cost: LayerCost) -> list[str]:
    """The cells of one layer's row: its path, metric drop, output error and operations."""
    operations = ", ".join(f"{count} {name}" for name, count in sorted(cost.operations.items()))
    return [cost.layer, signed(cost.drop), f"{cost.output_error:.1%}", operations]


def _interval_text(found: CompressResult, result: VariantResult) -> str:
    """The interval of the change, on a line of its own; "" if unknown."""
    interval = result.drop_interval
    if interval is None:
        return ""
    bounds = (interval.low, interval.high) if found.lower_is_better else (-interval.high, -interval.low)
    return "\n" + " to ".join(signed(bound) for bound in bounds)


def signed(change: float) -> str:
    """A change with its sign; without a sign if it rounds to 0.

    Example:
        >>> signed(-0.01), signed(0.25), signed(-1e-9)
        ('-0.0100', '+0.2500', '0.0000')
    """
    text = f"{change:+.4f}"
    return text[1:] if float(text) == 0 else text


def size_text(num_bytes: int) -> str:
    """A human-readable number of bytes.

    Example:
        >>> size_text(84_512), size_text(12_345_678), size_text(512)
        ('84.5 kB', '12.35 MB', '512 B')
    """
    if num_bytes < 1000:
        return f"{num_bytes} B"
    return f"{num_bytes / 1e3:.1f} kB" if num_bytes < 1e6 else f"{num_bytes / 1e6:.2f} MB"


def time_text(seconds: float) -> str:
    """A human-readable time.

    Example:
        >>> time_text(4.31e-5), time_text(0.0123)
        ('43 us', '12.30 ms')
    """
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
