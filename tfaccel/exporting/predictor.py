"""A model that predicts rows by name: from a `.keras` file or a SavedModel alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.data.raw_input import RawInput
from tfaccel.errors import ExportError
from tfaccel.exporting.load_model import ModelPlace, load_keras_model, served_model
from tfaccel.exporting.saved_model_files import GRAPH_FILE, no_saved_model, read_notes, version_folders
from tfaccel.exporting.signatures import DEFAULT, RAW, input_specs, signatures_of
from tfaccel.reporting.class_scores import softmax

_LONGEST_REASON = 300  # characters


class Predictor:
    """A model's functions.

    Arguments:
        place: where the model lies; the newest version of several.
        modules: the user's modules that define layers of a `.keras` file.

    Raises:
        ExportError: if the model cannot be loaded, or has no signature `serving_default`.
    """

    def __init__(self, place: ModelPlace, *, modules: Sequence[str] = ()) -> None:
        self.place = place
        self.raw_input: RawInput | None = place.raw_input
        if place.path.is_dir():
            folder = newest_saved_model(place.path)
            self._loaded = _saved_model(folder)
            self._functions: dict[str, Any] = dict(self._loaded.signatures)
            self.raw_input = read_notes(folder)[1]
        else:
            self._loaded = served_model(load_keras_model(place.path, modules=modules))
            self._functions = signatures_of(self._loaded, place.raw_input).functions
        self.inputs = input_specs(self._functions[DEFAULT])
        self.raw_inputs = input_specs(self._functions[RAW]) if RAW in self._functions else {}

    def tensors(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs for rows of the model's own inputs."""
        return self._call(DEFAULT, {name: tf.cast(arrays[name], spec.dtype) for name, spec in self.inputs.items()})

    def raw(self, contents: Sequence[bytes]) -> dict[str, np.ndarray]:
        """The outputs for encoded images, or texts in UTF-8.

        Raises:
            tensorflow.errors.InvalidArgumentError: if one of them cannot be read.
        """
        ((name, _),) = self.raw_inputs.items()
        return self._call(RAW, {name: tf.constant(list(contents), tf.string)})

    def _call(self, name: str, tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
        outputs = {key: value.numpy() for key, value in self._functions[name](**tensors).items()}
        return self._classified(outputs)

    def _classified(self, outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Probabilities in place of logits, where the classes are known."""
        known, first = self.raw_input, next(iter(outputs.values()))
        names = known.class_names if known is not None else ()
        if known is None or not names or len(outputs) != 1 or first.ndim != 2 or first.shape[1] != len(names):
            return outputs
        probabilities = softmax(first) if known.outputs == "logits" else first
        labels = np.array([names[column].encode() for column in probabilities.argmax(axis=1)], dtype=object)
        return {"label": labels, "probabilities": probabilities}


def newest_saved_model(folder: Path) -> Path:
    """The folder of the SavedModel in a folder: itself, its newest version, or that of an export.

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


def _saved_model(folder: Path) -> Any:
    try:
        loaded = tf.saved_model.load(str(folder))
    except Exception as error:  # TensorFlow raises errors of many kinds for files that it cannot load.
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise ExportError(f"The SavedModel in {folder} cannot be loaded: {reason}") from error
    names = sorted(getattr(loaded, "signatures", {}))
    if DEFAULT not in names:
        raise ExportError(
            f"The SavedModel in {folder} has no signature {DEFAULT!r}. It has: {', '.join(names) or 'no signature'}. "
            f"Export it anew with `tfaccel export`, or give tf.saved_model.save the argument "
            f"signatures={{{DEFAULT!r}: function}}."
        )
    return loaded
