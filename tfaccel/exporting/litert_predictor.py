"""A predictor for LiteRT files, with the same interface as for `.keras` files and SavedModels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.compressing.comparison.runtime_measures import default_num_threads
from tfaccel.compressing.litert.file import check_litert
from tfaccel.data.raw_input import ImageInput, TextInput
from tfaccel.errors import ExportError
from tfaccel.exporting.load_model import ModelPlace
from tfaccel.exporting.predictor import Predictor
from tfaccel.exporting.preprocessing import preprocessing
from tfaccel.exporting.signatures import DEFAULT


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
        details = self._runner.get_input_details()
        self._input_details: dict[str, Any] = dict(sorted(details.items()))
        self.inputs = {name: _spec(name, detail, place) for name, detail in self._input_details.items()}
        self.outputs = {
            name: _output_spec(name, detail) for name, detail in sorted(self._runner.get_output_details().items())
        }
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
            reason = " ".join(str(error).split())
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
        raise ExportError(f"LiteRT cannot load {place.path}: {' '.join(str(error).split())}") from error
    raise ExportError(
        f"{place.path} has no signature {DEFAULT!r}, which names its inputs and outputs. It has: "
        f"{', '.join(names) or 'none'}. Write it with `tfaccel export` or `tfaccel compress`."
    )


def _spec(name: str, detail: Mapping[str, Any], place: ModelPlace) -> tf.TensorSpec:
    sizes = [None if size < 0 else int(size) for size in detail["shape_signature"].tolist()] or [1]
    if sizes[0] not in (None, 1):
        raise ExportError(f"{place.path} has batch size {sizes[0]} for {name!r}; only a batch size of 1 is supported.")
    kind = np.float32 if _is_quantized(detail) else detail["dtype"]
    return tf.TensorSpec((None, *sizes[1:]), tf.as_dtype(kind), name=name)


def _output_spec(name: str, detail: Mapping[str, Any]) -> tf.TensorSpec:
    sizes = [None if size < 0 else int(size) for size in detail["shape_signature"].tolist()]
    kind = np.float32 if _is_quantized(detail) else detail["dtype"]
    return tf.TensorSpec((None, *sizes[1:]), tf.as_dtype(kind), name=name)


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
