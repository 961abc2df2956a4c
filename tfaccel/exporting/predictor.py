"""Predictors: models in `.keras` files, SavedModels and LiteRT files, called on rows by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.compressing.comparison.runtime_measures import default_num_threads
from tfaccel.compressing.litert.file import check_litert
from tfaccel.data.raw_input import ImageInput, RawInput, TextInput
from tfaccel.errors import ExportError, in_one_line
from tfaccel.exporting.load_model import ModelPlace, load_keras_model, served_model
from tfaccel.exporting.preprocessing import preprocessing
from tfaccel.exporting.saved_model_files import GRAPH_FILE, no_saved_model, read_notes, version_folders
from tfaccel.exporting.saved_model_session import SavedModelSession
from tfaccel.exporting.signatures import DEFAULT, RAW, input_specs, make_signatures
from tfaccel.reporting.classes import softmax


class Predictor:
    """Runs a model on rows, by the names of its inputs.

    Args:
        place: location of the model; the newest version is used.
        modules: the user's modules that define layers of a `.keras` file.
        allow_file_operations: whether a SavedModel's graph may contain operations that are not known to be safe.

    Raises:
        ExportError: if the model cannot be loaded, or has no signature `serving_default`.
    """

    def __init__(self, place: ModelPlace, *, modules: Sequence[str] = (), allow_file_operations: bool = False) -> None:
        self.place = place
        self.raw_input: RawInput | None = place.raw_input
        if place.path.is_dir():
            folder = newest_saved_model(place.path)
            session = _session(folder, allow_file_operations)
            self._run: Callable[[str, Mapping[str, Any]], dict[str, np.ndarray]] = session.run
            specs = {name: session.input_specs(name) for name in session.signatures}
            self.raw_input = read_notes(folder)[1]
        else:
            functions = make_signatures(
                served_model(load_keras_model(place.path, modules=modules)), place.raw_input
            ).functions
            self._run = partial(_run, functions)
            specs = {name: input_specs(function) for name, function in functions.items()}
        self.inputs, self.raw_inputs = specs[DEFAULT], specs.get(RAW, {})

    def tensors(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs for rows of the model's inputs."""
        kinds = {name: spec.dtype.as_numpy_dtype for name, spec in self.inputs.items()}
        return self._classified(self._run(DEFAULT, {name: arrays[name].astype(kind) for name, kind in kinds.items()}))

    def raw(self, contents: Sequence[bytes]) -> dict[str, np.ndarray]:
        """The outputs for encoded images, or texts in UTF-8.

        Raises:
            tensorflow.errors.InvalidArgumentError: if one of them cannot be read.
        """
        ((name, _),) = self.raw_inputs.items()
        return self._classified(self._run(RAW, {name: np.array(list(contents), dtype=object)}))

    def _classified(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Converts logits to predicted classes and probabilities, if the classes are known."""
        known, first = self.raw_input, next(iter(outputs.values()))
        names = known.class_names if known is not None else ()
        if known is None or not names or len(outputs) != 1 or first.ndim != 2 or first.shape[1] != len(names):
            return outputs
        probabilities = softmax(first) if known.outputs == "logits" else first
        labels = np.array([names[column].encode() for column in probabilities.argmax(axis=1)], dtype=object)
        return {"label": labels, "probabilities": probabilities}


def newest_saved_model(folder: Path) -> Path:
    """The SavedModel of a folder: the folder itself, its newest version, or that of an export."""
    for place in (folder, folder / "saved_model"):
        if (place / GRAPH_FILE).is_file():
            return place
        versions = [path for path in version_folders(place).values() if (path / GRAPH_FILE).is_file()]
        if versions:
            return versions[-1]
    raise ExportError(no_saved_model(folder))


def _run(functions: Mapping[str, Any], name: str, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    tensors = {key: tf.constant(value.tolist() if value.dtype == object else value) for key, value in arrays.items()}
    return {key: value.numpy() for key, value in functions[name](**tensors).items()}


def _session(folder: Path, allow_file_operations: bool) -> SavedModelSession:
    session = SavedModelSession(folder, allow_file_operations=allow_file_operations)
    if DEFAULT not in session.signatures:
        raise ExportError(
            f"The SavedModel in {folder} has no signature {DEFAULT!r}. It has: "
            f"{', '.join(session.signatures) or 'no signature'}. Export it again with `tfaccel export`, or pass "
            f"tf.saved_model.save the argument signatures={{{DEFAULT!r}: function}}."
        )
    return session


class LitertPredictor(Predictor):
    """Runs the signature `serving_default` of a LiteRT file, one row at a time.

    Inputs and outputs are floats; they are quantized and dequantized if the file uses integers.

    Args:
        place: location of the file, and its raw inputs.

    Raises:
        ExportError: if LiteRT cannot load the file, the signature is missing, or its batch size is not 1.
        VersionError: if LiteRT's runtime is not installed.
    """

    def __init__(self, place: ModelPlace) -> None:
        self.place = place
        self.raw_input = place.raw_input
        self._runner = _runner(place)
        self._input_details: dict[str, Any] = dict(sorted(self._runner.get_input_details().items()))
        for name, detail in self._input_details.items():
            size = next(iter(detail["shape_signature"].tolist()), 1)
            if size > 1 or size == 0:
                raise ExportError(
                    f"{place.path} has batch size {size} for {name!r}; only a batch size of 1 is supported."
                )
        self.inputs = {name: _spec(name, detail) for name, detail in self._input_details.items()}
        details = sorted(self._runner.get_output_details().items())
        self.outputs = {name: _spec(name, detail) for name, detail in details}
        self.raw_inputs = {}
        self._prepare: Callable[[tf.Tensor], tf.Tensor] | None = None
        if isinstance(place.raw_input, (ImageInput, TextInput)):
            if len(self.inputs) != 1:
                raise ExportError(f"{place.path} has {len(self.inputs)} inputs; models of raw inputs must have one.")
            self._prepare, spec, self._tables = preprocessing(place.raw_input)
            self.raw_inputs = {str(spec.name): spec}

    @property
    def raw_outputs(self) -> dict[str, tf.TensorSpec]:
        """Specs of the outputs of `raw`, by name: predicted class and all probabilities, if the classes are known."""
        rows = {
            name: np.zeros([size or 1 for size in spec.shape], spec.dtype.as_numpy_dtype)
            for name, spec in self.outputs.items()
        }
        found = self._classified(rows)
        if found is rows:
            return self.outputs
        return {name: tf.TensorSpec((None, *value.shape[1:]), value.dtype, name=name) for name, value in found.items()}

    def tensors(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs for rows of the model's inputs; logits become probabilities if the classes are known."""
        return self._classified(self.run(arrays))

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The unprocessed outputs for rows of the model's inputs."""
        rows = {name: _as_input(arrays[name], detail) for name, detail in self._input_details.items()}
        of_rows = [
            self._run_row({name: array[row : row + 1] for name, array in rows.items()})
            for row in range(len(next(iter(rows.values()))))
        ]
        return {name: np.concatenate([found[name] for found in of_rows]) for name in of_rows[0]}

    def raw(self, contents: Sequence[bytes]) -> dict[str, np.ndarray]:
        """The outputs for encoded images, or texts in UTF-8."""
        if self._prepare is None:
            raise ExportError(f"{self.place.path} does not describe its raw inputs. Give arrays (.npy, .npz).")
        (name,) = self.inputs
        return self.tensors({name: self._prepare(tf.constant(list(contents), tf.string)).numpy()})

    def _run_row(self, row: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            found = self._runner(**row)
        except (RuntimeError, ValueError) as error:
            reason = in_one_line(error)
            raise tf.errors.InvalidArgumentError(None, None, reason) from error
        details = self._runner.get_output_details()
        return {name: _as_output(value, details[name]) for name, value in sorted(found.items())}


def _runner(place: ModelPlace) -> Any:
    check_litert()
    from ai_edge_litert.interpreter import Interpreter

    try:
        interpreter = Interpreter(model_path=str(place.path), num_threads=max(default_num_threads()))
        names = sorted(interpreter.get_signature_list())
        if DEFAULT in names:
            interpreter.allocate_tensors()
            return interpreter.get_signature_runner(DEFAULT)
    except (RuntimeError, ValueError, OSError) as error:
        raise ExportError(f"LiteRT cannot load {place.path}: {in_one_line(error)}") from error
    raise ExportError(
        f"{place.path} has no signature {DEFAULT!r}, which names its inputs and outputs. It has: "
        f"{', '.join(names) or 'none'}. Write it with `tfaccel export` or `tfaccel compress`."
    )


def _spec(name: str, detail: Mapping[str, Any]) -> tf.TensorSpec:
    """The spec of rows of an input or output; quantized ones are floats here."""
    sizes = [None if size < 0 else size for size in detail["shape_signature"].tolist()[1:]]
    return tf.TensorSpec((None, *sizes), tf.as_dtype(np.float32 if _is_quantized(detail) else detail["dtype"]), name)


def _is_quantized(detail: Mapping[str, Any]) -> bool:
    return np.issubdtype(detail["dtype"], np.integer) and detail["quantization"][0] != 0


def _as_input(array: np.ndarray, detail: Mapping[str, Any]) -> np.ndarray:
    """Converts rows to the input's dtype; quantizes if needed."""
    kind = np.dtype(detail["dtype"])
    if not _is_quantized(detail):
        return array.astype(kind)
    scale, zero = detail["quantization"]
    limits = np.iinfo(kind)
    return np.clip(np.round(array / scale) + zero, limits.min, limits.max).astype(kind)


def _as_output(array: np.ndarray, detail: Mapping[str, Any]) -> np.ndarray:
    """Copies an output, which the next call overwrites; dequantizes if needed."""
    if not _is_quantized(detail):
        return np.array(array)
    scale, zero = detail["quantization"]
    return ((array.astype(np.float32) - zero) * scale).astype(np.float32)
