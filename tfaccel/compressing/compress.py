"""`compress`: makes smaller variants of a run's model, or of a Keras model, measures them and picks one."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import keras

from tfaccel.compressing.comparison.runtime_measures import default_num_threads, latencies, peak_memory_bytes
from tfaccel.compressing.comparison.task_metric import AGREEMENT, chosen_metric
from tfaccel.compressing.comparison.variant_judge import VariantJudge
from tfaccel.compressing.compress_options import CompressOptions
from tfaccel.compressing.compress_result import CompressResult
from tfaccel.compressing.compress_source import CompressSource, calculating_in_float32, loaded_model, make_source
from tfaccel.compressing.litert.file import check_litert
from tfaccel.compressing.litert.sensitivity import SelectiveQuantizer, Sensitivity
from tfaccel.compressing.methods import get_parts
from tfaccel.compressing.outcome_folder import PICTURE, VARIANTS, OutcomeFolder
from tfaccel.compressing.variant import KERAS_SUFFIX, LITERT_SUFFIX, DropInterval, Variant, VariantResult
from tfaccel.compressing.variant_maker import KERAS_FLOAT, VariantMaker
from tfaccel.errors import CompressionError, VersionError, WorkloadError
from tfaccel.hardware.detect import detect_hardware
from tfaccel.local_path import local_path
from tfaccel.planning.load_workload import (
    as_workload,
    check_finished_run,
    check_function,
    check_run_files,
    import_named,
    is_import_path,
    workload_of_run,
)
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.remote import is_remote, readable_path
from tfaccel.reporting.charts import SizedForm, save_size_metric_picture
from tfaccel.training.run.result import installed_versions
from tfaccel.training.runtime import Runtime

_OPTIONS = {option.name for option in fields(CompressOptions)}


def compress(
    run_or_model: str | os.PathLike[str] | keras.Model,
    *,
    methods: str | Sequence[str] = CompressOptions.methods,
    max_metric_drop: float = CompressOptions.max_metric_drop,
    workload: Workload | str | Callable[..., Any] | None = None,
    representative_data: Any = None,
    validation_data: Any = None,
    metric: str | None = CompressOptions.metric,
    direction: str = CompressOptions.direction,
    confidence: float = CompressOptions.confidence,
    num_representative: int = CompressOptions.num_representative,
    num_threads: Sequence[int] = CompressOptions.num_threads,
    latency_seconds: float = CompressOptions.latency_seconds,
    sensitivity: bool = CompressOptions.sensitivity,
    training: Mapping[str, Any] | None = None,
    out_dir: str | os.PathLike[str] | None = CompressOptions.out_dir,
    progress: Callable[[str], None] | None = None,
    **unknown: Any,
) -> CompressResult:
    """Makes smaller variants of a model, measures them, and picks the one that may replace it.

    Variants are compared by the task's metric on held-out data, file size, latency and memory in their own runtime on
    this machine, and agreement with the float model. The smallest variant whose metric is worse by at most
    `max_metric_drop` wins, if there are enough held-out examples to be sure of that with `confidence` (0.95). The
    folder `compressed` in the run directory then holds `report.json` (the table), `size_and_metric.png`, all variants
    in `variants`, and the winner as `model.tflite` (or `model.keras`).

    Args:
        run_or_model: the directory of a finished run, a `.keras` file, or a built Keras 3 model.
        methods: which methods to try, such as "float16,dynamic,int8"; see `tfaccel.compressing.methods.METHODS`.
        max_metric_drop: how much worse the metric may be, in its own unit; a negative value demands a gain.
        workload: what the model was trained on: a `Workload`, a recipe's name, an import path, or a function that
            returns a `Workload`; None for a recipe's run, or for a model with data.
        representative_data: examples that calibrate the ranges of activations, as arrays of shape (rows, ...) or
            a `tf.data.Dataset` of batches; None for the workload's training set.
        validation_data: held-out data, as `Model.evaluate` takes them: (x, y), or a `tf.data.Dataset` of batches; None
            for the workload's validation data. A compiled model is evaluated with its own loss and metrics.
        metric: the metric to compare by: one of the model's, "loss", or "agreement" (with the float model); None for
            the first metric other than the loss.
        direction: "min" or "max", whichever is better for the metric; "auto" infers it from the metric's name.
        confidence: with which the drop must be within the limit, at least 0.5; 0 to go by the estimate alone.
        num_representative: number of training examples that calibrate the ranges of activations.
        num_threads: thread counts to measure latency with; empty for one thread and for all usable cores.
        latency_seconds: how long to time each file with each thread count.
        sensitivity: also measure the metric drop of quantizing each layer alone to int8, as "mixed" does.
        training: options of the methods that train, by name; see `tfaccel.compressing.methods`.
        out_dir: output folder; None for `compressed` in the run directory; required for a model.
        progress: called with a line before each step.
        **unknown: refused, with the nearest name.

    Returns:
        The table of variants; `winner` is None if no variant is good enough, or if there are too few examples to tell
        (`is_undecided`).

    Raises:
        RunDirError: if the directory does not hold a finished run.
        CompressionError: for a file that Keras cannot load, an unknown method, representative data of the wrong shape,
            layers that LiteRT cannot convert (named in the message), or another invalid argument.
        VersionError: if a package that a method needs is missing.

    Example:

    >>> import keras, numpy as np, tempfile, tfaccel
    >>> model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(1)])
    >>> model.compile(loss="mse")
    >>> x = np.random.default_rng(0).normal(size=(32, 64)).astype("float32")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = tfaccel.compress(model, methods="float16", representative_data=x, validation_data=(x, x[:, :1]),
    ...                              latency_seconds=0.1, out_dir=f"{folder}/small")
    >>> found.winner.variant.name
    'float16'
    """
    given = {name: value for name, value in locals().items() if name in _OPTIONS}
    options = CompressOptions.of(given | unknown)
    if not all(get_parts(name)[0].kind == "keras" for name in options.methods):
        check_litert()
    out_dir = _out_dir(run_or_model, options)
    if isinstance(run_or_model, str | os.PathLike) and is_remote(run_or_model):
        run_or_model = readable_path(run_or_model, CompressionError)
    work = known_workload(run_or_model, workload)
    outcome = OutcomeFolder(out_dir)
    with Runtime(Plan(strategy="none", devices=("CPU:0",), global_batch_size=1)):
        source = make_source(
            run_or_model if is_run(run_or_model) else loaded_model(run_or_model),
            work,
            representative_data=representative_data,
            validation_data=validation_data,
        )
        with outcome.working_folder() as folder, calculating_in_float32(source.model):
            with contextlib.closing(_Steps(source, folder, options)) as steps:
                found = steps.run()
            _save_picture(folder, found)
            return outcome.keep(folder, found, raw_input=source.raw_input)


def is_run(run_or_model: Any) -> bool:
    """Whether it is meant as a run directory: any path but that of a `.keras` file.

    Example:
        >>> is_run("runs/one"), is_run("model.keras")
        (True, False)
    """
    return isinstance(run_or_model, str | os.PathLike) and Path(run_or_model).suffix != ".keras"


def known_workload(run_or_model: Any, workload: Any) -> Workload | None:
    """The workload of the model to compress; None if it has none.

    Raises:
        RunDirError: if the directory does not hold a finished run.
        WorkloadError: if the run is not of a recipe and no workload is given, or for no kind of workload.
        CompressionError: for anything but a run directory, a `.keras` file or a Keras model.
    """
    if isinstance(workload, str) and is_import_path(workload):
        check_function(workload, import_named(workload, error_type=WorkloadError))
    if is_run(run_or_model):
        check_run_files(check_finished_run(run_or_model))
        if workload is None or isinstance(workload, str):
            return workload_of_run(run_or_model, workload=workload)
    elif not isinstance(run_or_model, str | os.PathLike | keras.Model):
        raise CompressionError(
            "compress takes a run directory, a .keras file or a Keras 3 model. "
            f"Received: {type(run_or_model).__name__}."
        )
    return None if workload is None else as_workload(workload)


def _out_dir(run_or_model: Any, options: CompressOptions) -> str | os.PathLike[str]:
    if options.out_dir is not None:
        return options.out_dir
    if is_run(run_or_model):
        return local_path(os.path.join(run_or_model, "compressed"), CompressionError)
    raise CompressionError("Give `out_dir`, a folder for the compressed variants.")


class _Steps:
    """Makes, evaluates and measures the variants of one model, one by one."""

    def __init__(self, source: CompressSource, folder: Path, options: CompressOptions) -> None:
        self._source = source
        self._options = options
        self._judge = VariantJudge(source, options)
        self._metric, self._lower_is_better, self._float_value = AGREEMENT, False, 1.0
        self._maker = VariantMaker(
            source, folder / VARIANTS, options, make_mixed=lambda: self._sensitivity.mixed(options.max_metric_drop)
        )
        self._sensitivity = Sensitivity(
            functools.cache(lambda: SelectiveQuantizer(self._maker.converter, source.model, self._maker.rows)),
            drop_of=lambda content: self._get_drop(self._judge.get_metrics(content)),
            highest_drop_of=self._get_highest_drop,
            get_error=self._judge.output_error,
            progress=options.progress,
        )

    def close(self) -> None:
        self._maker.close()

    def run(self) -> CompressResult:
        """All variants, compared."""
        methods = self._options.methods
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
            max_metric_drop=self._options.max_metric_drop,
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
            self._source.task.judge_by(
                metric,
                lower_is_better=self._lower_is_better,
                limit=self._options.max_metric_drop,
                confidence=self._options.confidence,
            )

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
