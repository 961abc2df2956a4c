"""The model to compress, of a run or given, in float32, with its data: representative examples and held-out ones."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfaccel.compressing.call_signature import CallSignature, get_signature
from tfaccel.compressing.comparison.task_metric import Batches, TaskMetrics
from tfaccel.data.raw_input import FILE_NAME, RawInput, load_raw_input
from tfaccel.errors import CompressionError, RunDirError, in_one_line
from tfaccel.keras_file import check_members, check_no_code
from tfaccel.keras_file.private_load_model import load_model
from tfaccel.planning.run_length import compile_arguments, num_optimizer_steps
from tfaccel.planning.workload import Workload
from tfaccel.remote import readable_path
from tfaccel.training.private.private_api import all_layers, call_model
from tfaccel.training.private.private_tensorflow import variables_in_float32
from tfaccel.training.steps.model_parts import has_own_test_step

ROWS_AT_ONCE = 256
_INFINITE = -1  # tf.data's cardinality of an infinite data set


@dataclass(frozen=True)
class CompressSource:
    """A model and its data.

    Attributes:
        model: the model, computing in float32.
        signature: its call signature.
        representative: iterates over the examples that calibrate the ranges of activations.
        representative_text: a description of them.
        held_out: iterates over the held-out data.
        held_out_text: a description of them.
        task: evaluates predictions on the held-out data.
        workload: the workload it was trained on; None if only data are known.
        run_dir: the run it is from; None for a model.
    """

    model: keras.Model
    signature: CallSignature
    representative: Batches
    representative_text: str
    held_out: Batches
    held_out_text: str
    task: TaskMetrics
    workload: Workload | None
    run_dir: Path | None

    @property
    def raw_input(self) -> RawInput | None:
        """The raw inputs of the model; None if unknown."""
        if self.run_dir is not None and (self.run_dir / FILE_NAME).is_file():
            return load_raw_input(self.run_dir / FILE_NAME)
        given: RawInput | None = None if self.workload is None else self.workload.raw_input
        return given

    @property
    def loading(self) -> dict[str, Any]:
        """What a process needs to load and call the model: modules of its layers, their path, and its inputs."""
        modules = {type(layer).__module__ for layer in all_layers(self.model)}
        imports = sorted(name for name in modules if name.split(".")[0] not in ("keras", "builtins", "__main__"))
        return {"imports": imports, "path": list(sys.path), "nest": self.signature.input_nest}


def make_source(
    run_or_model: Any, workload: Workload | None, *, representative_data: Any = None, validation_data: Any = None
) -> CompressSource:
    """The model and its data.

    Args:
        run_or_model: a run directory, or a Keras model.
        workload: the workload it was trained on; None if only data are known.
        representative_data: examples that show the ranges of activations; None for the workload's training set.
        validation_data: the held-out data; None for the workload's validation data.

    Raises:
        CompressionError: if data are missing, or the model cannot be evaluated from its outputs alone.
        RunDirError: if the run's model cannot be read.
    """
    representative, text = _representative(workload, representative_data)
    held_out, held_out_text = _held_out(workload, validation_data)
    run_dir = None if isinstance(run_or_model, keras.Model) else readable_path(run_or_model, CompressionError)
    examples, examples_text = (held_out, held_out_text) if held_out is not None else (representative, text)
    if workload is not None:
        examples, examples_text = training_batches(workload), _training_set(workload)
    x = first_inputs(examples, what=examples_text)
    model = run_or_model if run_dir is None else _model_of_run(run_dir, workload, x)
    _check_not_quantized(model)
    signature = get_signature(model, x, what=examples_text)
    if held_out is None:
        held_out, held_out_text = representative, f"{text}, since there are no held-out data"
        if representative_data is not None:
            held_out = get_repeated_batches(_as_inputs(representative_data), what="representative_data")
        task = TaskMetrics(held_out)
    else:
        task, note = _task(model, workload, held_out)
        held_out_text += note
    return CompressSource(model, signature, representative, text, held_out, held_out_text, task, workload, run_dir)


def loaded_model(given: keras.Model | str | os.PathLike[str]) -> keras.Model:
    """A model as it is, or loaded from its `.keras` file, compiled as it was saved.

    Raises:
        CompressionError: if Keras cannot load the file.
        ExportError: if it would run code.
    """
    if isinstance(given, keras.Model):
        return given
    file = readable_path(given, CompressionError)
    if not file.is_file():
        raise CompressionError(f"There is no file {given}.")
    check_no_code(file)
    try:
        return load_model(file, safe_mode=True)
    except Exception as error:  # Keras raises errors of many kinds for files that it cannot load
        text = in_one_line(error, 300)
        raise CompressionError(
            f"Keras cannot load {given} ({text}). Import the modules that define its layers, or give the model."
        ) from error


@contextlib.contextmanager
def calculating_in_float32(model: keras.Model) -> Iterator[None]:
    """Makes all layers compute in float32 inside the context, whatever their dtype policy."""
    changed = []
    with variables_in_float32(model.variables):
        try:
            for layer in all_layers(model):
                policy = layer.dtype_policy
                if policy.compute_dtype != "float32" and getattr(policy, "quantization_mode", None) is None:
                    changed.append((layer, policy))
                    layer.dtype_policy = "float32"
            yield
        finally:
            for layer, policy in changed:
                layer.dtype_policy = policy


def _check_not_quantized(model: keras.Model) -> None:
    """Raises CompressionError for a model that Keras has already quantized."""
    for layer in all_layers(model):
        mode = getattr(layer.dtype_policy, "quantization_mode", None)
        if mode is not None:
            raise CompressionError(
                f"The model is already quantized: its layer {layer.name!r} in {mode}. Give the float model."
            )


def _representative(workload: Workload | None, given: Any) -> tuple[Batches, str]:
    if given is not None:
        return get_batches(_as_inputs(given), what="representative_data"), "the representative data given"
    if workload is None:
        raise CompressionError(
            "A model without a workload needs `representative_data`: examples of its training set, as arrays or as a "
            "tf.data.Dataset of batches. Give it, or workload=."
        )
    return training_batches(workload), _training_set(workload)


def _as_inputs(given: Any) -> Any:
    """A list is the inputs of a model with several, as Keras takes them; a tuple may have targets."""
    return (given,) if isinstance(given, list) else given


def _training_set(workload: Workload) -> str:
    return f"the training set of {workload.name} (seed 0, epoch 0, as in training)"


def _held_out(workload: Workload | None, given: Any) -> tuple[Batches | None, str]:
    if given is not None:
        return get_repeated_batches(given, what="validation_data"), "the validation data given"
    validation_data = None if workload is None else workload.validation_data
    if workload is None or validation_data is None:
        return None, ""
    return lambda: _unpacked(validation_data(workload.global_batch_size)), f"the validation data of {workload.name}"


def _model_of_run(run_dir: Path, workload: Workload | None, x: Any) -> keras.Model:
    """The run's model, rebuilt to compute in float32."""
    path = run_dir / "model.keras"
    if workload is None:
        raise CompressionError(f"The run in {run_dir} needs its workload.")
    check_members(path)
    try:
        model = workload.build_model()
        if not model.built:
            call_model(model, x, training=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # A mismatch is reported below.
            model.load_weights(path)
    except (ValueError, OSError, KeyError) as error:
        text = in_one_line(error, 300)
        raise RunDirError(f"{path} does not hold the model of {workload.name} ({text}). Train it again.") from error
    return model


def _task(model: keras.Model, workload: Workload | None, held_out: Batches) -> tuple[TaskMetrics, str]:
    """The evaluator of predictions, and why it has no loss and metrics, where it has none."""
    if has_own_test_step(model):
        return TaskMetrics(held_out), "; it overrides test_step, so only outputs are compared"
    if workload is not None:
        names = list(getattr(model, "output_names", None) or ())
        arguments = compile_arguments(workload, num_steps=num_optimizer_steps(workload) or 1)
        return TaskMetrics(held_out, compile_args=arguments, output_names=names), ""
    if not model.compiled:
        return TaskMetrics(held_out), "; the model is not compiled, so only outputs are compared"
    return TaskMetrics(held_out, compiled=model), ""


def get_batches(data: Any, *, what: str) -> Batches:
    """Passes over data that a user gave.

    Args:
        data: a `tf.data.Dataset` of batches, or (inputs, targets) or (inputs, targets, weights) as arrays, or the
            inputs alone; inputs may be a nest (a dictionary, or a list in such a tuple) of arrays.
        what: what error messages call it.
    """
    if hasattr(data, "as_numpy_iterator"):
        return lambda: _unpacked(data)
    if not isinstance(data, list | tuple | Mapping) and not hasattr(data, "__array__"):
        raise CompressionError(
            f"{what} must be a tf.data.Dataset of batches, or arrays with a row for each example. Received: "
            f"{type(data).__name__}."
        )
    if isinstance(data, list | tuple) and not 1 <= len(data) <= 3:
        raise CompressionError(f"{what} must be (inputs, targets, weights) at most. Received: {len(data)} parts.")
    parts = _map(np.asarray, keras.utils.unpack_x_y_sample_weight(data))
    lengths = {len(leaf) if leaf.ndim else 0 for leaf in keras.tree.flatten(parts) if leaf is not None}
    if len(lengths) != 1 or 0 in lengths:
        raise CompressionError(
            f"{what} must be a tf.data.Dataset of batches, or arrays of the same length, at least one row. Received "
            f"arrays of {', '.join(map(str, sorted(lengths))) or 'no'} rows."
        )
    (length,) = lengths

    def cut() -> Iterator[tuple[Any, Any, Any]]:
        for start in range(0, length, ROWS_AT_ONCE):
            yield _map(itemgetter(slice(start, start + ROWS_AT_ONCE)), parts)

    return cut


def get_repeated_batches(data: Any, *, what: str) -> Batches:
    """Passes over data that a user gave, each with the same batches in the same order.

    A `tf.data.Dataset` with random order or values is cached on disk while the passes are needed.
    """
    batches = get_batches(data, what=what)
    if not hasattr(data, "cardinality"):
        return batches
    if int(data.cardinality()) == _INFINITE:
        raise CompressionError(
            f"{what} must end. Received: an infinite data set. Leave `repeat()` out, or say how many "
            "batches it has with `take()`."
        )
    if _is_same(*(next(iter(batches()), ()) for _ in range(2))):
        return batches
    folder = tempfile.mkdtemp(prefix="tfaccel-held-out-")
    data.save(folder)
    kept = get_batches(type(data).load(folder), what=what)
    weakref.finalize(kept, shutil.rmtree, folder, True)
    return kept


def training_batches(workload: Workload) -> Batches:
    """Passes over the training set, in the order of epoch 0 and seed 0."""
    return lambda: _unpacked(workload.train_data(workload.global_batch_size, seed=0, epoch=0))


def get_rows(batches: Batches, signature: CallSignature, *, num_rows: int, what: str) -> list[dict[str, np.ndarray]]:
    """The first examples of a pass: arrays by name, of shape (1, ...)."""
    rows: list[dict[str, np.ndarray]] = []
    for x, _, _ in batches():
        for row in signature.rows(x, what=what):
            if len(rows) == num_rows:
                return rows
            rows.append(row)
    if not rows:
        raise CompressionError(f"There are no examples in {what}. Give at least one.")
    return rows


def check_ranges(rows: Sequence[Mapping[str, np.ndarray]], *, what: str) -> None:
    """Raises CompressionError for examples with NaN or infinite values."""
    for number, row in enumerate(rows):
        for name, array in row.items():
            if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
                value = array[~np.isfinite(array)][0]
                raise CompressionError(
                    f"Ranges of activations cannot be calibrated with NaN or infinite values. Received: {value} in "
                    f"input {name!r} of example {number} of {what}. Leave such examples out."
                )


def first_inputs(batches: Batches, *, what: str) -> Any:
    """The inputs of the first batch of a pass."""
    for x, _, _ in batches():
        return x
    raise CompressionError(f"There are no examples in {what}. Give at least one.")


def _map(function: Callable[[Any], Any], nest: Any) -> Any:
    """The nest with a function's values; None stays None."""
    return keras.tree.map_structure(lambda leaf: None if leaf is None else function(leaf), nest)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two nests have equal values; NaN equals NaN."""
    pairs = zip(*(map(np.asarray, keras.tree.flatten(nest)) for nest in (one, other)), strict=True)
    return all(a.shape == b.shape and _content(a) == _content(b) for a, b in pairs)


def _content(array: np.ndarray) -> Any:
    return array.tolist() if array.dtype == object else array.tobytes()


def _unpacked(dataset: Any) -> Iterator[Any]:
    return map(keras.utils.unpack_x_y_sample_weight, dataset.as_numpy_iterator())
