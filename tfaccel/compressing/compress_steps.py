"""The steps of `compress`: makes all variants of a model, evaluates and measures them, and writes the result."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfaccel.compressing.comparison.drop_interval import DropInterval
from tfaccel.compressing.comparison.drop_judge import DropLimit
from tfaccel.compressing.comparison.gate import CompressResult
from tfaccel.compressing.comparison.runtime_measures import default_num_threads, latencies, peak_memory_bytes
from tfaccel.compressing.comparison.task_metric import AGREEMENT, chosen_metric
from tfaccel.compressing.comparison.variant_judge import VariantJudge
from tfaccel.compressing.comparison.variant_result import VariantResult
from tfaccel.compressing.compress_options import CompressOptions
from tfaccel.compressing.compress_source import CompressSource, calculating_in_float32
from tfaccel.compressing.litert.selective import SelectiveQuantizer
from tfaccel.compressing.litert.sensitivity import Sensitivity
from tfaccel.compressing.methods import get_parts
from tfaccel.compressing.outcome_folder import PICTURE, VARIANTS, OutcomeFolder
from tfaccel.compressing.variant import KERAS_SUFFIX, LITERT_SUFFIX, Variant
from tfaccel.compressing.variant_maker import KERAS_FLOAT, VariantMaker
from tfaccel.errors import CompressionError, VersionError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.reporting.charts import SizedForm, save_size_metric_picture
from tfaccel.training.run.result import installed_versions


def compress_source(
    source: CompressSource,
    methods: Sequence[str],
    outcome: OutcomeFolder,
    *,
    max_metric_drop: float,
    options: CompressOptions,
) -> CompressResult:
    """Makes and measures a model's variants by the given methods, and writes them to a folder.

    Raises:
        CompressionError: if the float model cannot be converted, or an argument does not fit it.
        VersionError: if a package that a method needs is missing.
    """
    with outcome.working_folder() as folder, calculating_in_float32(source.model):
        with contextlib.closing(_Steps(source, folder, max_metric_drop, options)) as steps:
            found = steps.run(methods)
        _save_picture(folder, found)
        return outcome.keep(folder, found, raw_input=source.raw_input)


class _Steps:
    """Makes, evaluates and measures the variants of one model, one by one."""

    def __init__(self, source: CompressSource, folder: Path, max_metric_drop: float, options: CompressOptions) -> None:
        self._source = source
        self._options = options
        self._max_drop = max_metric_drop
        self._judge = VariantJudge(source, options)
        self._metric, self._lower_is_better, self._float_value = AGREEMENT, False, 1.0
        self._maker = VariantMaker(
            source, folder / VARIANTS, options, make_mixed=lambda: self._sensitivity.mixed(max_metric_drop)
        )
        self._sensitivity = Sensitivity(
            lambda: SelectiveQuantizer(self._maker.converter, source.model, self._maker.rows),
            drop_of=lambda content: self._get_drop(self._judge.get_metrics(content)),
            highest_drop_of=self._get_highest_drop,
            get_error=self._judge.output_error,
            progress=options.progress,
        )

    def close(self) -> None:
        self._maker.close()

    def run(self, methods: Sequence[str]) -> CompressResult:
        """All variants, compared."""
        self._maker.check(methods)
        in_keras = [get_parts(name)[0].kind == "keras" for name in methods]
        results = [self._judge.float_result(self._maker.make_float(in_keras=all(in_keras)))]
        self._choose_metric(results[0])
        if any(in_keras) and not all(in_keras):
            results.append(self._made_and_judged(KERAS_FLOAT, lambda: self._maker.make_float(in_keras=True)))
        results += [self._made_and_judged(name, functools.partial(self._maker.make, name)) for name in methods]
        wanted = self._options.sensitivity or "mixed" in methods
        return CompressResult(
            metric=self._metric,
            lower_is_better=self._lower_is_better,
            max_metric_drop=self._max_drop,
            confidence=self._options.confidence,
            results=tuple(self._measured(results)),
            held_out=f"{self._source.task.num_examples} examples of {self._source.held_out_text}",
            representative=self._maker.representative_text,
            machine=_machine(self._options),
            sensitivity=self._sensitivity.costs if wanted else (),
        )

    def _choose_metric(self, of_float: VariantResult) -> None:
        metric = chosen_metric(self._options.metric, dict(of_float.metrics))
        if self._options.direction == "auto":
            self._lower_is_better = metric != AGREEMENT and self._source.task.lower_is_better(metric)
        else:
            self._lower_is_better = self._options.direction == "min"
        self._metric, self._float_value = metric, of_float.metrics[metric]
        if not math.isfinite(self._float_value):
            raise CompressionError(
                f"The float model's {metric} is {self._float_value} on {self._source.held_out_text}, so no variant "
                "can be compared with it. Look for NaN in its weights and in the data, or choose another metric."
            )
        if self._options.confidence:
            limit = DropLimit(
                metric=metric,
                lower_is_better=self._lower_is_better,
                drop=self._max_drop,
                confidence=self._options.confidence,
            )
            self._source.task.judge_by(limit)

    def _get_highest_drop(self, content: bytes) -> float:
        """The upper bound of the drop of a LiteRT file that is not kept."""
        metrics = self._judge.get_metrics(content)
        interval = self._interval(metrics)
        return self._get_drop(metrics) if interval is None else interval.high

    def _interval(self, metrics: Mapping[str, float]) -> DropInterval | None:
        """The confidence interval of the drop of the variant evaluated last."""
        value = metrics.get(self._metric, math.nan)
        if not math.isfinite(value):
            return None
        return self._source.task.drop_interval(of_float=self._float_value, value=value)

    def _get_drop(self, metrics: dict[str, float]) -> float:
        change = metrics[self._metric] - self._float_value
        return change if self._lower_is_better else -change

    def _made_and_judged(self, name: str, make: Callable[[], Variant]) -> VariantResult:
        """The result of a variant; where the method cannot be applied, a result with the cause."""
        try:
            result = self._judge.result(make())
            return replace(result, drop_interval=self._interval(result.metrics))
        except VersionError:
            raise
        except CompressionError as error:
            suffix = KERAS_SUFFIX if name.startswith("keras_") else LITERT_SUFFIX
            return VariantResult(variant=Variant(name=name, method=name, path=f"{name}{suffix}"), failure=str(error))

    def _measured(self, results: Sequence[VariantResult]) -> list[VariantResult]:
        """The results with latency and memory; a variant that its runtime cannot run has failed."""
        self._options.progress("latency of all variants, interleaved")
        measured = list(results)
        for is_litert in (True, False):
            places = [place for place, one in enumerate(results) if one.variant.is_litert == is_litert]
            places = [place for place in places if not results[place].failure]
            for place, found in zip(places, self._timed([results[place] for place in places]), strict=True):
                measured[place] = found if found.failure else self._with_memory(found)
        return measured

    def _timed(self, results: Sequence[VariantResult]) -> list[VariantResult]:
        """Results of one runtime with latency, interleaved; one by one where that fails, to find which one fails."""
        options, variants = self._options, [result.variant for result in results]
        try:
            times = latencies(
                variants,
                self._judge.row,
                num_threads=options.num_threads or default_num_threads(),
                seconds=options.latency_seconds,
                loading=self._source.loading,
            )
        except CompressionError as error:
            if len(results) == 1:
                return [replace(results[0], failure=str(error))]
            return [found for result in results for found in self._timed([result])]
        return [replace(result, latencies=found) for result, found in zip(results, times, strict=True)]

    def _with_memory(self, result: VariantResult) -> VariantResult:
        self._options.progress(f"{result.variant.name}: memory")
        memory = peak_memory_bytes(result.variant, self._judge.row, loading=self._source.loading)
        return replace(result, peak_memory_bytes=memory)


def _save_picture(folder: Path, found: CompressResult) -> None:
    forms = [SizedForm(one.variant.name, one.size_bytes, found.value(one), _state(found, one)) for one in found.results]
    change = found.max_metric_drop if found.lower_is_better else -found.max_metric_drop
    limit = found.value(found.results[0]) + change
    save_size_metric_picture(folder / PICTURE, forms, metric=found.metric, limit=limit)


def _state(found: CompressResult, result: VariantResult) -> str:
    """How the picture shows a variant."""
    if found.is_float(result) and not result.failure:
        return "float"
    if result is found.winner:
        return "winner"
    return "passes" if found.is_within(result) else "fails"


def _machine(options: CompressOptions) -> dict[str, Any]:
    hardware = detect_hardware()
    return {
        "cpu_model": hardware.cpu_model,
        "num_usable_cores": hardware.num_usable_cores,
        "versions": installed_versions(),
        "latency_seconds": options.latency_seconds,
    }
