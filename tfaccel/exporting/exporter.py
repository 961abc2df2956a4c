"""Writes one model in several formats, and compares each file with the model."""

from __future__ import annotations

import functools
import json
import logging
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.raw_input import ImageInput, RawInput
from tfaccel.errors import ExportError
from tfaccel.exporting.comparison import Comparison, differences
from tfaccel.exporting.edge_rows import EdgeCase, edge_cases
from tfaccel.exporting.export_folder import RESULT_FILE, SAVED_MODEL_FOLDER
from tfaccel.exporting.export_result import ExportedFile, ExportResult
from tfaccel.exporting.float32_model import float32_model
from tfaccel.exporting.fresh_process import NEST, RAW_MARK, as_inputs
from tfaccel.exporting.load_model import MODEL_FILE, ModelPlace
from tfaccel.exporting.sample_rows import NUM_ROWS, raw_rows, rows_of_raw, sample_rows, smallest_embedding
from tfaccel.exporting.saved_model_files import serving_command, write_saved_model
from tfaccel.exporting.signatures import DEFAULT, RAW, check_batch, make_signatures, output_specs
from tfaccel.training.private.private_api import call_model

logger = logging.getLogger("tfaccel")

LITERT_FILE, ONNX_FILE, LITERT_PROGRAM = "model.tflite", "model.onnx", "run_litert.py"
SERVING_PROGRAM = "tensorflow_serving.sh"
_NAMES = {"keras": "Keras's own file", "saved_model": "a SavedModel", "litert": "a LiteRT file", "onnx": "an ONNX file"}


class Exporter:
    """Writes one model into a folder.

    Args:
        model: a built Keras model.
        place: its file, name and raw inputs.
        folder: an empty folder.
        sample: an input batch, or None.
        own_rows: an input batch of the run's own data, or None.
        modules: the user's modules that define its layers.

    Raises:
        ExportError: if the model's inputs are unknown, or it cannot be called.
    """

    def __init__(
        self,
        model: keras.Model,
        place: ModelPlace,
        folder: Path,
        *,
        sample: Any = None,
        own_rows: Any = None,
        modules: Sequence[str] = (),
    ) -> None:
        self._model, self._exact = model, float32_model(model)
        self._place, self._folder, self._modules = place, folder, modules
        self._signatures = make_signatures(self._exact, place.raw_input, sample=sample)
        self._rows = self._rows_of_run(own_rows) if sample is None else self._get_rows(sample)
        self._names = list(output_specs_in_order(self._signatures.functions[DEFAULT]))
        self._wanted = self._outputs(self._exact, self._rows)
        self._version = 1

    def write(self, formats: Sequence[str], *, folder: Path, version: int) -> ExportResult:
        """Writes and compares the files, then writes the result.

        Args:
            formats: the formats to write.
            folder: the final folder of the export.
            version: version of the SavedModel.
        """
        self._version = version
        trained = self._outputs(self._model, self._rows) if self._model is not self._exact else self._wanted
        apart = [np.abs(a - b) for a, b in zip(trained, self._wanted, strict=True) if b.dtype.kind == "f"]
        changed = max((float(np.max(values, initial=0.0)) for values in apart), default=0.0)
        written = []
        for kind in formats:
            logger.info("Writing %s", _NAMES[kind])
            written.append(getattr(self, f"_write_{kind}")())
        logger.info("Loading the files in a fresh process, and comparing them with the Keras model")
        pairs = zip(written, differences(written, self._modules), strict=True)
        files = [self._file(file, *found) for file, found in pairs]
        for file in files:
            if file.differs:
                logger.warning("%s differs from the Keras model. %s", file.path, file.differs)
        result = ExportResult(
            name=self._place.name,
            version=version,
            folder=str(folder),
            files=tuple(files),
            float32_difference=changed,
            commands=self._commands(formats, folder),
        )
        (self._folder / RESULT_FILE).write_text(json.dumps(result.to_json(), indent=2) + "\n")
        return result

    def _write_keras(self) -> Comparison:
        path = self._folder / MODEL_FILE
        if self._place.path.is_file():
            shutil.copyfile(self._place.path, path)
        else:
            self._model.save(path)
        rows = {**self._rows, NEST: np.array(json.dumps(self._signatures.input_nest))}
        wanted = self._outputs(self._model, self._rows)
        return Comparison("keras", path, rows, _numbered(wanted))

    def _write_saved_model(self) -> Comparison:
        raw_input = self._place.raw_input
        path = self._folder / SAVED_MODEL_FOLDER / str(self._version)
        has_raw = RAW in self._signatures.functions
        raw = raw_rows(raw_input, self._rows) if has_raw else {}
        requests = [(DEFAULT, _first(self._rows)), (DEFAULT, self._rows)]
        requests += [(RAW, _first(raw)), (RAW, raw)] if raw else []
        path.parent.mkdir()
        write_saved_model(path, self._signatures, name=self._place.name, raw_input=raw_input, requests=requests)
        wanted = dict(zip(self._names, self._wanted, strict=True))
        rows = dict(self._rows)
        if raw and raw_input is not None:
            rows |= {f"{RAW_MARK}{name}": array for name, array in raw.items()}
            of_raw = self._outputs(self._exact, rows_of_raw(raw_input, raw, self._rows))
            wanted |= {f"{RAW_MARK}{name}": value for name, value in self._raw_outputs(of_raw, raw_input).items()}
        program = self._folder / SERVING_PROGRAM
        program.write_text(serving_command(self._place.name))
        readable = program.stat().st_mode & 0o444
        program.chmod(program.stat().st_mode | readable >> 2)  # who may read it may run it
        return self._with_edges(
            Comparison("saved_model", path, rows, wanted, tuple(self._signatures.functions)), self._names
        )

    def _write_litert(self) -> Comparison:
        from tfaccel.exporting import litert_program
        from tfaccel.exporting.litert_files import litert_content

        path = self._folder / LITERT_FILE
        path.write_bytes(
            litert_content(
                self._exact, self._signatures, name=self._place.name, raw_input=self._place.raw_input, rows=self._rows
            )
        )
        shutil.copyfile(litert_program.__file__, self._folder / LITERT_PROGRAM)
        wanted = dict(zip(self._names, self._wanted, strict=True))
        return self._with_edges(Comparison("litert", path, self._rows, wanted, (DEFAULT,)), self._names)

    def _write_onnx(self) -> Comparison:
        from tfaccel.exporting.onnx_files import write_onnx

        path = self._folder / ONNX_FILE
        write_onnx(path, self._exact)
        rows = {name: self._rows[name] for name in self._nest_order()}
        wanted = _numbered(self._wanted)
        return self._with_edges(Comparison("onnx", path, rows, wanted), list(wanted))

    def _with_edges(self, file: Comparison, names: Sequence[str]) -> Comparison:
        """The comparison on edge values as well."""
        cases = [replace(case, rows={name: case.rows[name] for name in self._nest_order()}) for case in self._edges]
        return replace(file, edges=tuple(cases), edge_names=tuple(names))

    @functools.cached_property
    def _edges(self) -> list[EdgeCase]:
        def outputs(rows: Mapping[str, np.ndarray]) -> list[np.ndarray]:
            with tf.device("/CPU:0"):  # where numbers that are no tokens are refused
                return self._outputs(self._exact, rows)

        return edge_cases(self._rows, outputs, highest=smallest_embedding(self._exact))

    def _file(self, file: Comparison, difference: float, size: float, differs: str) -> ExportedFile:
        path = file.path
        num_bytes = sum(entry.stat().st_size for entry in [path, *path.rglob("*")] if entry.is_file())
        return ExportedFile(
            format=file.kind,
            path=str(path.relative_to(self._folder)),
            num_bytes=num_bytes,
            max_difference=difference,
            max_output=size,
            signatures=file.signatures,
            differs=differs,
        )

    def _rows_of_run(self, own_rows: Any) -> dict[str, np.ndarray]:
        """Rows of the run's own data if the model takes them, otherwise random ones."""
        if own_rows is not None:
            inputs, leaves, names = self._signatures.inputs, keras.tree.flatten(own_rows), self._nest_order()
            specs = [inputs[name] for name in names]
            if len(leaves) == len(specs) and all(map(_takes, specs, leaves)):
                rows = self._get_rows(own_rows)
                is_image = isinstance(self._place.raw_input, ImageInput)
                return {name: np.clip(np.round(array), 0, 255) for name, array in rows.items()} if is_image else rows
        return sample_rows(self._signatures.inputs, self._exact, self._place.raw_input)

    def _get_rows(self, sample: Any) -> dict[str, np.ndarray]:
        inputs = self._signatures.inputs
        leaves, names = keras.tree.flatten(sample), self._nest_order()
        if len(leaves) != len(names):
            raise ExportError(
                f"The model has {len(names)} inputs ({', '.join(names)}). Received: a sample with {len(leaves)}."
            )
        check_batch(leaves)
        rows = {name: np.asarray(leaf)[:NUM_ROWS] for name, leaf in zip(names, leaves, strict=True)}
        return {
            name: _encoded(array)
            if inputs[name].dtype == tf.string
            else array.astype(inputs[name].dtype.as_numpy_dtype)
            for name, array in rows.items()
        }

    def _nest_order(self) -> list[str]:
        """The inputs' names in the order of the model's inputs."""
        return list(keras.tree.flatten(self._signatures.input_nest))

    def _outputs(self, model: keras.Model, rows: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs of a Keras model in this process; half precision is converted to float32."""
        arguments = keras.tree.map_structure(as_inputs(rows).__getitem__, self._signatures.input_nest)
        outputs = [
            np.asarray(keras.ops.convert_to_numpy(value))
            for value in keras.tree.flatten(call_model(model, arguments, training=False))
        ]
        return [value if value.dtype.kind in "biufcSO" else value.astype(np.float32) for value in outputs]

    def _raw_outputs(self, outputs: list[np.ndarray], raw_input: RawInput) -> dict[str, np.ndarray]:
        """The expected outputs of `serving_raw`, computed with NumPy."""
        if set(self._signatures.functions[RAW].structured_outputs) != {"label", "probabilities"}:
            return dict(zip(self._names, outputs, strict=True))
        values = outputs[0].astype(np.float64)
        if raw_input.outputs == "logits":
            powers = np.exp(values - values.max(axis=1, keepdims=True))
            values = powers / powers.sum(axis=1, keepdims=True)
        labels = np.array([raw_input.class_names[row].encode() for row in values.argmax(axis=1)])
        return {"label": labels, "probabilities": values}

    def _commands(self, formats: Sequence[str], folder: Path) -> dict[str, str]:
        """Shell commands that use the files."""
        place, commands = folder.resolve(), {}
        if "saved_model" in formats:
            versions, name = place / SAVED_MODEL_FOLDER, self._place.name
            mount = shlex.quote(f"type=bind,source={versions},target=/models/{name}")
            commands["serve"] = f"tfaccel serve --model={shlex.quote(str(versions))} --name={name}"
            commands["tensorflow_serving"] = (
                f"docker run --rm -p 127.0.0.1:8501:8501 -e MODEL_NAME={name} --mount {mount} tensorflow/serving"
            )
        if "litert" in formats:
            files = [shlex.quote(str(place / file)) for file in (LITERT_PROGRAM, LITERT_FILE)]
            commands["litert"] = f"python {files[0]} {files[1]} examples.npy"
        return commands


def _takes(spec: tf.TensorSpec, leaf: Any) -> bool:
    """Whether an input takes an array of at least four rows."""
    array = np.asarray(leaf)
    kinds = "OSU" if spec.dtype == tf.string else "biuf"
    return len(array) >= NUM_ROWS and array.dtype.kind in kinds and spec.shape[1:].is_compatible_with(array.shape[1:])


def _encoded(texts: np.ndarray) -> np.ndarray:
    """Texts as byte strings in UTF-8."""
    parts = [text.encode() if isinstance(text, str) else bytes(text) for text in texts.ravel().tolist()]
    return np.array([*parts, None], object)[:-1].reshape(texts.shape)


def output_specs_in_order(function: Any) -> dict[str, Any]:
    """The output specs of a function of `make_signatures`, in the order of the model's outputs."""
    known = output_specs(function)
    return {name: known[name] for name in function.structured_outputs}


def _numbered(values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    return {str(place): value for place, value in enumerate(values)}


def _first(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array[:1] for name, array in rows.items()}
