"""A LiteRT file that answers as a SavedModel's session does: signatures in, arrays out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import descriptor_pool, message_factory

from tfaccel.exporting.litert_predictor import LitertPredictor
from tfaccel.exporting.load_model import ModelPlace, raw_input_of_file
from tfaccel.exporting.signatures import DEFAULT, RAW

_PREDICT = "tensorflow/serving/predict"

Specs = Mapping[str, tf.TensorSpec]


class LitertModel:
    """A LiteRT file with the signatures that a SavedModel of the same model has.

    `serving_default` takes and returns tensors; `serving_raw`, if the raw inputs are known, takes encoded images or
    texts, and returns the most likely class and all probabilities if the classes are known.

    Args:
        file: the file.

    Attributes:
        signatures: name -> `SignatureDef`.
        raw_input: its raw inputs; None if unknown.

    Raises:
        ExportError: if LiteRT cannot load it, or it has no signature that takes one row at a time.
        VersionError: if LiteRT's runtime is not installed.
    """

    def __init__(self, file: Path) -> None:
        self.raw_input = raw_input_of_file(file)
        self._predictor = LitertPredictor(ModelPlace(file, file.stem, self.raw_input))
        self._inputs: dict[str, Specs] = {DEFAULT: self._predictor.inputs}
        outputs: dict[str, Specs] = {DEFAULT: self._predictor.outputs}
        if self._predictor.raw_inputs:
            self._inputs[RAW], outputs[RAW] = self._predictor.raw_inputs, self._predictor.raw_outputs
        self.signatures = {name: _signature(self._inputs[name], outputs[name]) for name in outputs}

    def input_specs(self, name: str) -> Specs:
        """The inputs of a signature, by name."""
        return self._inputs[name]

    def run(self, name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs of a signature for arrays by name.

        Raises:
            tensorflow.errors.OpError: if the model cannot take them.
        """
        if name == DEFAULT:
            return self._predictor.run(arrays)
        (contents,) = arrays.values()
        return self._predictor.raw(contents.tolist())

    def writes(self, name: str) -> bool:
        """Whether a signature changes the model's state: none does."""
        del name
        return False


def _signature(inputs: Specs, outputs: Specs) -> Any:
    """A `SignatureDef`."""
    kind = message_factory.GetMessageClass(descriptor_pool.Default().FindMessageTypeByName("tensorflow.SignatureDef"))
    made: Any = kind(method_name=_PREDICT)
    for side, specs in ((made.inputs, inputs), (made.outputs, outputs)):
        for name, spec in specs.items():
            side[name].name = name
            side[name].dtype = spec.dtype.as_datatype_enum
            side[name].tensor_shape.CopyFrom(spec.shape.as_proto())
    return made
