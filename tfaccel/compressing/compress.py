"""`compress`: makes smaller variants of a run's model, or of a Keras model, measures them and picks one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfaccel.compressing.comparison.gate import CompressResult
from tfaccel.compressing.compress_options import CompressOptions, checked_drop
from tfaccel.compressing.litert.schema import check_litert
from tfaccel.compressing.methods import DEFAULT_METHODS, checked_methods, get_parts
from tfaccel.compressing.outcome_folder import OutcomeFolder
from tfaccel.errors import CompressionError, WorkloadError
from tfaccel.planning.load_workload import (
    as_workload,
    check_finished_run,
    check_function,
    import_named,
    is_import_path,
    workload_of_run,
)
from tfaccel.planning.plan import Plan
from tfaccel.planning.workload import Workload
from tfaccel.training.runtime import Runtime

if TYPE_CHECKING:
    import keras

_OPTIONS = {option.name for option in fields(CompressOptions)}
_FILLED = ("training", "progress")  # None: the default


def compress(
    run_or_model: str | os.PathLike[str] | keras.Model,
    *,
    methods: str | Sequence[str] = DEFAULT_METHODS,
    max_metric_drop: float = 0.01,
    workload: Workload | str | Callable[..., Any] | None = None,
    representative_data: Any = None,
    validation_data: Any = None,
    metric: str | None = None,
    direction: str = "auto",
    confidence: float = 0.95,
    num_representative: int = 200,
    num_threads: Sequence[int] = (),
    latency_seconds: float = 1.0,
    sensitivity: bool = False,
    training: Mapping[str, Any] | None = None,
    out_dir: str | os.PathLike[str] | None = None,
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
        metric, direction, confidence: how variants are compared; see
            `tfaccel.compressing.compress_options.CompressOptions` for these arguments and those below.
        num_representative: number of training examples that calibrate the ranges of activations.
        num_threads, latency_seconds: how latency is measured.
        sensitivity: also measure the metric drop of quantizing each layer alone.
        training: options of the methods that train.
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
    given = {name: value for name, value in given.items() if not (value is None and name in _FILLED)}
    names, limit, chosen = checked_methods(methods), checked_drop(max_metric_drop), CompressOptions.of(given | unknown)
    if not all(get_parts(name)[0].kind == "keras" for name in names):
        check_litert()
    work = known_workload(run_or_model, workload)
    outcome = OutcomeFolder(_out_dir(run_or_model, chosen))
    with Runtime(Plan(strategy="none", devices=("CPU:0",), global_batch_size=1)):
        from tfaccel.compressing.compress_source import loaded_model, make_source
        from tfaccel.compressing.compress_steps import compress_source

        data = {"representative_data": representative_data, "validation_data": validation_data}
        model = run_or_model if is_run(run_or_model) else loaded_model(run_or_model)
        source = make_source(model, work, **data)
        return compress_source(source, names, outcome, max_metric_drop=limit, options=chosen)


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
        check_finished_run(run_or_model)
        if workload is None or isinstance(workload, str):
            return workload_of_run(run_or_model, workload=workload)
    elif not isinstance(run_or_model, str | os.PathLike):
        import keras

        if not isinstance(run_or_model, keras.Model):
            raise CompressionError(
                "compress takes a run directory, a .keras file or a Keras 3 model. "
                f"Received: {type(run_or_model).__name__}."
            )
    return None if workload is None else as_workload(workload)


def _out_dir(run_or_model: Any, options: CompressOptions) -> str | os.PathLike[str]:
    if options.out_dir is not None:
        return options.out_dir
    if is_run(run_or_model):
        return os.path.join(run_or_model, "compressed")
    raise CompressionError("Give `out_dir`, a folder for the compressed variants.")
