"""LiteRT files of a Keras model by TensorFlow's converter: in float32, float16, int8 and int16 with int8.

Source: https://ai.google.dev/edge/litert/conversion/tensorflow/quantization/post_training_quantization
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.compressing.call_signature import SIGNATURE_KEY, CallSignature, traced
from tfaccel.compressing.litert.conversion import Conversion, write_rows
from tfaccel.compressing.litert.conversion_child import ConversionChild, ConversionError
from tfaccel.compressing.litert.file import input_order, named_operations, operations
from tfaccel.compressing.litert.model import LitertModel
from tfaccel.compressing.litert.unsupported_layers import check_no_loops, refusal
from tfaccel.compressing.mask_values import COPY, best_mask_value, copy_with_mask_value, has_huge_constants
from tfaccel.compressing.methods import FLOAT32
from tfaccel.compressing.output_error import relative_error
from tfaccel.errors import CompressionError
from tfaccel.training.private.private_api import all_layers, lookup_tables, tf_variable

# Recurrent layers are unrolled up to this many steps; each adds a dozen operations to the file.
MAX_STEPS = 256
# Mask values are compared by the outputs for this many examples.
_MAX_COMPARED = 50

Rows = Sequence[Mapping[str, np.ndarray]]


class Converter:
    """Converts one model by several methods; the model is traced once.

    A converted file takes one example at a time through the signature `serving_default`, with the model's input dtypes
    (float or integer). Operations without an integer kernel stay in float.

    Args:
        model: a built Keras model that computes in float32.
        signature: its call signature.
        folder: an empty folder, needed for the converter's lifetime.
        child: runs the conversions.
    """

    def __init__(
        self, model: keras.Model, signature: CallSignature, folder: str | Path, *, child: ConversionChild
    ) -> None:
        self._child = child
        self._rows_files: dict[int, tuple[Rows, str]] = {}
        self._model = model
        self._signature = signature
        self._folder = str(folder)
        self._masks: tuple[str, str] | None = None  # the SavedModel with quantizable masks, and a note
        names = signature.output_names

        def named(outputs: Any) -> dict[str, Any]:
            return dict(zip(names, keras.tree.flatten(outputs), strict=True))

        self._function = traced(model, signature, named)
        module = tf.Module()
        module.kept = [
            *(tf_variable(variable) for variable in model.variables),
            *self._function.graph.variables,
            *lookup_tables(model),
        ]
        with quiet_conversion():
            tf.saved_model.save(module, self._folder, signatures={SIGNATURE_KEY: self._function})

    @functools.cached_property
    def float_content(self) -> bytes:
        """The file in float32."""
        return self._converted(Conversion(self._folder, FLOAT32))

    @functools.cached_property
    def without_loops(self) -> Converter:
        """A converter of the same model with unrolled recurrent layers; itself if there are no loops.

        TensorFlow's converter cannot calibrate activations inside loops: it would crash the process.
        """
        longest = max((tensor.shape[0] for tensor in self._signature.inputs if tensor.shape), default=0)
        if "WHILE" not in operations(self.float_content) or longest > MAX_STEPS:
            return self
        folder = Path(self._folder) / "unrolled"
        folder.mkdir()
        with unrolled(self._model):
            return Converter(self._model, self._signature, folder, child=self._child)

    def convert(self, method: str, rows: Rows = (), *, one_scale: bool = False) -> bytes:
        """The LiteRT file made by a method.

        Args:
            method: "float32", "float16", "dynamic", "int8" or "int16x8".
            rows: representative examples, arrays by name of shape (1, ...), for the last two.
            one_scale: one scale per kernel instead of one per channel; for "int8".

        Raises:
            CompressionError: for layers that LiteRT cannot convert; the message names them.
        """
        if method == FLOAT32:
            return self.float_content
        if not rows:
            return self._converted(Conversion(self._folder, method, one_scale=one_scale))
        whole = self.without_loops
        return whole._converted(replace(whole.prepared(method, rows), one_scale=one_scale))

    def prepared(self, method: str, rows: Rows) -> Conversion:
        """The conversion by a method; representative examples are ordered as the float file's inputs."""
        check_no_loops(named_operations(self.float_content), self._model, method)
        return self._with_rows(method, rows, self._with_masks(rows)[0])

    def quantize(self, conversion: Conversion, kept: Sequence[str]) -> bytes:
        """The LiteRT file of a prepared conversion, with these operations kept in float."""
        with quiet_conversion():
            return self._child.quantize(conversion, kept)

    def mask_note(self, rows: Rows) -> str:
        """A note on masks that were changed when calibrating with `rows`; "" if none was."""
        return self.without_loops._with_masks(rows)[1]

    def _with_masks(self, rows: Rows) -> tuple[str, str]:
        """The SavedModel with quantizable masks, made once, and a note on it."""
        if self._masks is None:
            few = rows[:_MAX_COMPARED]
            expected = self._outputs(self.float_content, few)
            folders: dict[float | None, str] = {None: self._folder}

            def get_error(value: float | None) -> float:
                if value is not None:
                    folders[value] = str(Path(self._folder) / f"{COPY}{value:g}")
                    copy_with_mask_value(Path(self._folder), Path(folders[value]), value)
                content = self._converted(self._with_rows("int8", few, folders[value]))
                return relative_error(expected, self._outputs(content, few))

            huge = has_huge_constants(Path(self._folder))
            best, note = best_mask_value(get_error) if huge else (None, "")
            self._masks = folders[best], note
        return self._masks

    def _outputs(self, content: bytes, rows: Rows) -> list[dict[str, np.ndarray]]:
        model = LitertModel(content, self._signature)
        return [model.run(row) for row in rows]

    def _with_rows(self, method: str, rows: Rows, folder: str) -> Conversion:
        if id(rows) not in self._rows_files:  # Rows are kept alive, so that their id is not reused.
            path = str(Path(self._folder) / f"rows_{len(self._rows_files)}.npz")
            write_rows(path, rows)
            self._rows_files[id(rows)] = rows, path
        return Conversion(folder, method, self._rows_files[id(rows)][1], tuple(input_order(self.float_content)))

    def _converted(self, conversion: Conversion) -> bytes:
        with quiet_conversion():
            try:
                return self._child.convert(conversion)
            except ConversionError as error:
                method = conversion.method
                text = _without_range(str(error), method) or refusal(error, self._function.graph, self._model, method)
                raise CompressionError(text) from error


def _without_range(text: str, method: str) -> str:
    """The advice if the converter wants a range for integers, as it does for int16; "" for another error.

    Example:
        >>> _without_range("Empty min/max for tensor serving_default_words:0", "int16x8")[:69]
        "int16x8 does not support the integer input 'words', which is looked u"
    """
    found = re.search(r"Empty min/max for tensor (?:serving_default_)?([\w/]+)", text)
    if found is None:
        return ""
    return (
        f"{method} does not support the integer input {found[1]!r}, which is looked up in an embedding or a gather: "
        "TensorFlow's converter wants a range for it. Use int8, dynamic or weight_int8."
    )


@contextlib.contextmanager
def make_converter(model: keras.Model, signature: CallSignature) -> Iterator[Converter]:
    """A converter with a temporary folder."""
    with (
        tempfile.TemporaryDirectory(prefix="tfaccel-convert-") as folder,
        contextlib.closing(ConversionChild()) as child,
    ):
        yield Converter(model, signature, folder, child=child)


@contextlib.contextmanager
def unrolled(model: keras.Model) -> Iterator[None]:
    """Unrolls recurrent layers inside the context."""
    layers = [layer for layer in all_layers(model) if getattr(layer, "unroll", None) is False]
    try:
        for layer in layers:
            layer.unroll = True
        yield
    finally:
        for layer in layers:
            layer.unroll = False


@contextlib.contextmanager
def quiet_conversion() -> Iterator[None]:
    """Silences output of TensorFlow's converter that users cannot act on, some of it written by C++."""
    loggers = [logging.getLogger("tensorflow"), logging.getLogger("absl")]
    levels = [logger.level for logger in loggers]
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
