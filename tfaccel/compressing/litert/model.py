"""A LiteRT file run by `ai-edge-litert`, called as the Keras model is, and how far its outputs are from the model's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfaccel.compressing.call_signature import SIGNATURE_KEY, CallSignature
from tfaccel.errors import CompressionError, in_one_line


class LitertModel:
    """Predicts with a LiteRT file, example by example.

    Args:
        content: the file, or its path.
        signature: the model's call signature.
        num_threads: number of LiteRT threads.
    """

    def __init__(self, content: bytes | Path, signature: CallSignature, *, num_threads: int = 1) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self._signature = signature
        source = {"model_content": content} if isinstance(content, bytes) else {"model_path": str(content)}
        try:
            self._interpreter = Interpreter(**source, num_threads=num_threads)
            self._interpreter.allocate_tensors()
            runner = self._interpreter.get_signature_runner(SIGNATURE_KEY)
        except (RuntimeError, ValueError) as error:
            raise CompressionError(f"LiteRT cannot load the model: {in_one_line(error)}") from error
        self._inputs = {name: detail["index"] for name, detail in runner.get_input_details().items()}
        self._outputs = {name: detail["index"] for name, detail in runner.get_output_details().items()}

    def run(self, row: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs for one example: arrays by name, of shape (1, ...)."""
        try:
            for name, index in self._inputs.items():
                self._interpreter.set_tensor(index, row[name])
            self._interpreter.invoke()
        except (RuntimeError, ValueError) as error:
            raise CompressionError(f"LiteRT cannot run the model on an example: {in_one_line(error)}") from error
        return {name: self._interpreter.get_tensor(index) for name, index in self._outputs.items()}

    def predict(self, x: Any) -> Any:
        """The outputs for a batch, structured as the Keras model returns them."""
        outputs = [self.run(row) for row in self._signature.rows(x)]
        named = {name: np.concatenate([row[name] for row in outputs]) for name in self._signature.output_names}
        return keras.tree.map_structure(named.__getitem__, self._signature.output_nest)


def relative_error(expected: Any, found: Any) -> float:
    """Root mean square of the differences, relative to the spread of the expected values.

    Args:
        expected, found: nests of arrays of the same shapes.

    Example:
        >>> relative_error({"y": np.array([1.0, -1.0])}, {"y": np.array([1.1, -1.1])})
        0.1
    """
    a, b = (
        np.concatenate([np.ravel(np.asarray(one, np.float64)) for one in keras.tree.flatten(nest)])
        for nest in (expected, found)
    )
    return round(float(np.sqrt(np.mean((a - b) ** 2))) / (float(np.std(a)) or 1.0), 12)
