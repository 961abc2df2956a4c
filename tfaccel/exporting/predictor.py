"""A predictor for `.keras` files and SavedModels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.data.raw_input import RawInput
from tfaccel.errors import ExportError
from tfaccel.exporting.load_model import ModelPlace, load_keras_model, served_model
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
    """The SavedModel of a folder: the folder itself, its newest version, or that of an export.

    Raises:
        ExportError: if there is none.
    """
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
