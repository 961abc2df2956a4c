"""The benchmark of `compress`: the image recipe's model in int8 and with 80 % zeros, and what QAT recovers."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.measurement import Measurement, Window
from tfaccel.benchmarks.qat_suite import qat_figures
from tfaccel.benchmarks.report import Report
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.compressing.comparison.runtime_measures import default_num_threads, latencies
from tfaccel.compressing.compress import compress
from tfaccel.compressing.compress_result import CompressResult
from tfaccel.compressing.variant import VariantResult
from tfaccel.errors import CompressionError
from tfaccel.planning.load_workload import load_recipe
from tfaccel.planning.run_length import get_run_epochs
from tfaccel.planning.workload import Workload
from tfaccel.training.train import train

# Figure of the image recipe -> its method.
RECIPE_METHODS = {"int8": "int8", "pruning": "prune"}
MAX_INT8_SIZE, MAX_INT8_LATENCY, MAX_PRUNED_ZIPPED_SIZE, MAX_DROP = 0.27, 0.67, 0.4, 0.01
_RECIPE = "image_classification"
_LATENCY_SECONDS = 1.0


def run_compress_suite(names: Sequence[str], options: SuiteOptions) -> Report:
    """Compresses trained models and reports the size, metric and latency of the variants.

    Args:
        names: of figures: keys of `RECIPE_METHODS`, and "qat" (see `qat_suite`).
        options: `scale` multiplies the epochs.
    """
    figures: list[Figure] = []
    measurements: dict[str, tuple[Measurement, ...]] = {}
    of_recipe = [name for name in names if name in RECIPE_METHODS]
    if of_recipe:
        figures, measurements = _recipe_figures(of_recipe, options)
    if "qat" in names:
        figures += qat_figures(options)
    return Report(suite="compress", machine=options.machine(), measurements=measurements, figures=tuple(figures))


def _recipe_figures(
    names: Sequence[str], options: SuiteOptions
) -> tuple[list[Figure], dict[str, tuple[Measurement, ...]]]:
    """Trains the image recipe, and compresses it."""
    work = load_recipe(_RECIPE)
    epochs = max(1, round(get_run_epochs(work, None) * options.scale))
    with tempfile.TemporaryDirectory(prefix="tfaccel-benchmark-") as folder:
        options.progress(f"{_RECIPE}: train")
        run_dir = str(Path(folder) / "run")
        train(work, run_dir=run_dir, epochs=epochs, verbose=0)
        found = compress(
            run_dir,
            methods=[RECIPE_METHODS[name] for name in names],
            max_metric_drop=MAX_DROP,
            workload=work,
            latency_seconds=_LATENCY_SECONDS,
            progress=lambda text: options.progress(f"{_RECIPE}: {text}"),
        )
        figures = _pruning_figures(found) if "pruning" in names else []
        if "int8" not in names:
            return figures, {}
        of_int8, times = _int8_figures(found, work, options)
        return of_int8 + figures, {"int8": times}


def _int8_figures(
    found: CompressResult, work: Workload, options: SuiteOptions
) -> tuple[list[Figure], tuple[Measurement, ...]]:
    """Size, drop and latency; latency is measured again in each repetition."""
    result, of_float = _result(found, "int8"), found.results[0]
    seconds: list[tuple[float, ...]] = []
    row = _held_out_row(work)
    for repetition in range(options.repetitions):
        options.progress(f"int8: latency, {repetition + 1} of {options.repetitions}")
        both = latencies(
            [of_float.variant, result.variant], row, num_threads=default_num_threads(), seconds=_LATENCY_SECONDS
        )
        seconds.append(tuple(min(one.p50_seconds for one in each) for each in both))
    ratios = tuple(int8 / float32 for float32, int8 in seconds)
    figures = [
        Figure(name="int8", quantity="size int8 / float32", values=(found.size_ratio(result),), at_most=MAX_INT8_SIZE),
        Figure(name="int8", quantity=f"{found.metric} float32 - int8", values=(found.drop(result),), at_most=MAX_DROP),
        Figure(
            name="int8",
            quantity="latency of one image int8 / float32, best threads",
            values=ratios,
            at_most=MAX_INT8_LATENCY,
        ),
        Figure(name="int8", quantity=f"{found.metric}, float32", values=(found.value(of_float),)),
        Figure(name="int8", quantity="decisions as the float model's", values=(result.agreement,)),
    ]
    names = ("float32", "int8")
    times = [_measurement(name, [pair[place] for pair in seconds]) for place, name in enumerate(names)]
    return figures, tuple(times)


def _pruning_figures(found: CompressResult) -> list[Figure]:
    result, of_float = _result(found, "prune"), found.results[0]
    zipped = result.zipped_bytes / of_float.zipped_bytes
    return [
        Figure(
            name="pruning",
            quantity="zipped size with zeros / float32",
            values=(zipped,),
            at_most=MAX_PRUNED_ZIPPED_SIZE,
        ),
        Figure(
            name="pruning",
            quantity=f"{found.metric} float32 - with zeros",
            values=(found.drop(result),),
            at_most=MAX_DROP,
        ),
    ]


def _result(found: CompressResult, method: str) -> VariantResult:
    """The variant that a method created.

    Raises:
        CompressionError: if it failed.
    """
    result = next(one for one in found.results if one.variant.name == method)
    if result.failure:
        raise CompressionError(f"The image recipe could not be compressed by {method}: {result.failure}")
    return result


def _measurement(name: str, seconds: Sequence[float]) -> Measurement:
    windows = [
        Window(wall_seconds=one, cpu_seconds=0.0, epoch_seconds=(one,), tail_seconds=(0.0,), loss=0.0)
        for one in seconds
    ]
    return Measurement(name=name, num_steps=1, windows=tuple(windows), warm_up_loss=0.0)


def _held_out_row(work: Workload) -> dict[str, np.ndarray]:
    """One image, by the name of the model's input."""
    images, _ = next(iter((work.validation_data or work.train_data)(1).as_numpy_iterator()))
    return {"pixels": images.astype(np.float32)}
