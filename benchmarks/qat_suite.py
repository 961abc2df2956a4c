"""The fraction of the accuracy lost by post-training int8 that QAT recovers, for `compress_suite`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import keras

from tfaccel.benchmarks import qat_task
from tfaccel.benchmarks.figure import Figure
from tfaccel.benchmarks.suite_options import SuiteOptions
from tfaccel.compressing.compress import compress
from tfaccel.compressing.compress_result import CompressResult
from tfaccel.errors import CompressionError
from tfaccel.planning.workload import Workload
from tfaccel.training.train import train

# The smallest accuracy loss of post-training int8 for a meaningful test, and the fraction of it that QAT must recover.
MIN_LOSS, MIN_FRACTION_WON_BACK = 0.02, 0.5
_METRIC = "accuracy"
_LATENCY_SECONDS = 0.02  # latency does not matter here


def qat_figures(options: SuiteOptions) -> list[Figure]:
    """Accuracy of `qat_task`'s network in float32, in post-training int8, and after quantization-aware training.

    Each repetition trains a new network and scales its channels by other factors.

    Args:
        options: `scale` multiplies the epochs of both trainings.
    """
    epochs = max(1, round(qat_task.EPOCHS * options.scale))
    work = qat_task.workload()
    found = []
    for repetition in range(options.repetitions):
        place = f"qat, {repetition + 1} of {options.repetitions}"
        with tempfile.TemporaryDirectory(prefix="tfaccel-benchmark-") as folder:
            options.progress(f"{place}: train")
            train(work, run_dir=Path(folder) / "run", epochs=epochs, seed=repetition, verbose=0)
            model = keras.models.load_model(Path(folder) / "run" / "model.keras", compile=False)
            qat_task.spread_channels(model, seed=repetition)
            found.append(accuracies(_compressed(model, work, Path(folder) / "small", options, place=place)))
    return get_figures(found)


def accuracies(found: CompressResult) -> tuple[float, float, float]:
    """The accuracies of float32, int8 and qat.

    Raises:
        CompressionError: if a variant could not be made.
    """
    for result in found.results:
        if result.failure:
            raise CompressionError(f"The network could not be compressed by {result.variant.name}: {result.failure}")
    by_name = {result.variant.name: found.value(result) for result in found.results}
    return by_name["float32"], by_name["int8"], by_name["qat"]


def get_figures(found: list[tuple[float, float, float]]) -> list[Figure]:
    """The figures, from the accuracies of each repetition.

    The recovered fraction covers the repetitions in which accuracy was lost.

    Example:
        >>> figures = {figure.quantity: figure for figure in get_figures([(0.97, 0.93, 0.96), (0.96, 0.92, 0.96)])}
        >>> round(figures["part of that loss won back by qat"].minimum, 6)
        0.75
    """
    losses = [of_float - int8 for of_float, int8, _ in found]
    won = [(qat - int8) / (of_float - int8) for of_float, int8, qat in found if of_float > int8]
    figures = [Figure(name="qat", quantity=f"{_METRIC} float32 - int8", values=tuple(losses), at_least=MIN_LOSS)]
    if won:
        figures.append(
            Figure(
                name="qat",
                quantity="part of that loss won back by qat",
                values=tuple(won),
                at_least=MIN_FRACTION_WON_BACK,
            )
        )
    for name, values in zip(("float32", "int8", "qat"), zip(*found, strict=True), strict=True):
        figures.append(Figure(name="qat", quantity=f"{_METRIC}, {name}", values=values))
    return figures


def _compressed(
    model: keras.Model, work: Workload, folder: Path, options: SuiteOptions, *, place: str
) -> CompressResult:
    training = dict(qat_task.QAT_OPTIONS)
    training["epochs"] = max(1, round(training["epochs"] * options.scale))
    return compress(
        model,
        methods="int8,qat",
        metric=_METRIC,
        workload=work,
        training=training,
        out_dir=str(folder),
        latency_seconds=_LATENCY_SECONDS,
        progress=lambda text: options.progress(f"{place}: {text}"),
    )
