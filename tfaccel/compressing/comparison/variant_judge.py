"""Evaluates variants of a model: metrics and agreement on held-out data, sizes, and float operations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.compressing.comparison.runtime_measures import default_num_threads
from tfaccel.compressing.comparison.task_metric import AGREEMENT, Predict
from tfaccel.compressing.compress_options import CompressOptions
from tfaccel.compressing.compress_source import CompressSource, first_inputs, get_rows
from tfaccel.compressing.keras_quantize import load_quantized
from tfaccel.compressing.litert.file import float_operations, operations, zipped_bytes
from tfaccel.compressing.litert.model import LitertModel, relative_error
from tfaccel.compressing.variant import Variant, VariantResult
from tfaccel.errors import CompressionError, in_one_line
from tfaccel.training.private.private_api import call_model

# Relative to the outputs' spread: LiteRT computes in another order than TensorFlow, but also in float32.
_CONVERSION_TOLERANCE = 1e-3
_COMPARED_ROWS = 64
_SHOWN_CHARACTERS = 300


class VariantJudge:
    """Evaluates variants of one model.

    Args:
        source: the model and its data.
        options: `progress` is called before each variant.

    Attributes:
        row: one held-out example, to measure latency with.
    """

    def __init__(self, source: CompressSource, options: CompressOptions) -> None:
        self._source = source
        self._progress = options.progress
        self._float_outputs: Any = None
        self.row = get_rows(source.held_out, source.signature, num_rows=1, what="the held-out data")[0]

    def float_result(self, variant: Variant) -> VariantResult:
        """Evaluates the float model, the reference of the others.

        Raises:
            CompressionError: if its outputs differ from the Keras model's.
        """
        self._progress(f"{variant.name}: metric on held-out data")
        predict = self._get_predict(variant)
        self._float_outputs = predict(self._few_inputs())
        self._check_conversion()
        return self._result(variant, self._source.task.of_float_model(predict))

    def result(self, variant: Variant) -> VariantResult:
        """Evaluates another variant."""
        self._progress(f"{variant.name}: metric on held-out data")
        return self._result(variant, self._source.task.of(self._get_predict(variant)))

    def get_metrics(self, content: bytes) -> dict[str, float]:
        """The metrics of a LiteRT file that is not kept."""
        return self._source.task.of(self._litert(content).predict)

    def output_error(self, content: bytes) -> float:
        """How far the outputs of a LiteRT file are from the float model's; see `relative_error`."""
        return relative_error(self._float_outputs, self._litert(content).predict(self._few_inputs()))

    def _few_inputs(self) -> Any:
        x = first_inputs(self._source.held_out, what="held-out data")
        return keras.tree.map_structure(lambda leaf: leaf[:_COMPARED_ROWS], x)

    def _result(self, variant: Variant, metrics: dict[str, float]) -> VariantResult:
        path = Path(variant.path)
        known: dict[str, Any] = {}
        if variant.is_litert:
            content = path.read_bytes()
            known["float_operations"] = float_operations(content)
            known["num_operations"] = sum(operations(content).values())
        return VariantResult(
            variant=variant,
            metrics={**metrics, **variant.metrics},
            size_bytes=path.stat().st_size,
            zipped_bytes=zipped_bytes(path),
            agreement=metrics[AGREEMENT],
            **known,
        )

    def _get_predict(self, variant: Variant) -> Predict:
        if variant.is_litert:
            return self._litert(Path(variant.path).read_bytes()).predict
        return keras_predict(load_quantized(variant.path))

    def _litert(self, content: bytes) -> LitertModel:
        return LitertModel(content, self._source.signature, num_threads=max(default_num_threads()))

    def _check_conversion(self) -> None:
        predict = keras_predict(self._source.model)
        expected = predict(self._few_inputs())
        self._check_outputs(expected, predict(self._few_inputs()))
        names = self._source.signature.output_names
        pairs = zip(names, keras.tree.flatten(expected), keras.tree.flatten(self._float_outputs), strict=True)
        for name, a, b in pairs:
            spread = float(np.max(np.abs(a))) or 1.0
            error = float(np.max(np.abs(np.asarray(a, np.float64) - b))) / spread
            if not error <= _CONVERSION_TOLERANCE:
                raise CompressionError(
                    f"The model in LiteRT (float32) has other outputs than in Keras: {name!r} is off by "
                    f"{error:.1e} of its largest value, {_CONVERSION_TOLERANCE:g} is allowed. The converter got a "
                    "layer wrong; keep the model in Keras (keras_int8), or leave that layer out."
                )

    def _check_outputs(self, expected: Any, again: Any) -> None:
        """Raises CompressionError for outputs that are not finite, or random."""
        names = self._source.signature.output_names
        for name, a, b in zip(names, keras.tree.flatten(expected), keras.tree.flatten(again), strict=True):
            if not np.isfinite(a).all():
                raise CompressionError(
                    f"The float model gives {a[~np.isfinite(a)][0]} in {name!r} for {self._source.held_out_text}, so "
                    "no variant can be compared with it. Look for NaN in its weights and in the data."
                )
            if not np.array_equal(a, b):
                raise CompressionError(
                    f"The model's output {name!r} is random: it differs from call to call, so no variant can be "
                    "compared with it. Remove randomness when training=False."
                )


def keras_predict(model: keras.Model) -> Predict:
    """A function from a batch's inputs to a Keras model's outputs, as arrays.

    It raises CompressionError for a batch that the model cannot be called with.
    """

    def predict(x: Any) -> Any:
        tensors = keras.tree.map_structure(keras.ops.convert_to_tensor, x)
        try:
            return keras.tree.map_structure(np.asarray, call_model(model, tensors, training=False))
        except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
            text = in_one_line(error, _SHOWN_CHARACTERS)
            rows = len(keras.tree.flatten(tensors)[0])
            raise CompressionError(f"The Keras model cannot be called with {rows} examples at once: {text}") from error

    return predict
