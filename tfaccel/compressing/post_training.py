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
from tfaccel.compressing.conversion import Conversion, write_rows
from tfaccel.compressing.conversion_child import ConversionChild, ConversionError
from tfaccel.compressing.int8_scales import relative_error
from tfaccel.compressing.litert_file import input_order, named_operations, operations
from tfaccel.compressing.litert_model import LitertModel
from tfaccel.compressing.mask_values import COPY, best_mask_value, copy_with_mask_value, has_huge_constants
from tfaccel.compressing.methods import FLOAT32
from tfaccel.compressing.unsupported_layers import check_no_loops, refusal
from tfaccel.errors import CompressionError
from tfaccel.training.private_api import all_layers, tf_variable

# Recurrent layers are unrolled up to so many steps; each takes a dozen operations of the file.
MOST_STEPS = 256
# Values of masks are compared by the outputs for so many examples.
_MOST_COMPARED = 50

Rows = Sequence[Mapping[str, np.ndarray]]


class Converter:
    """Converts one model by several methods; the model is traced once.

    A converted file takes one example at a time, floats or whole numbers as the model does, by the signature
    `serving_default`. Operations that have no form in integers stay in float.

    Args:
        model: a built Keras model that calculates in float32.
        signature: how it is called.
        folder: an empty folder, which is used as long as the converter is.
        child: converts.
    """

    def __init__(
        self, model: keras.Model, signature: CallSignature, folder: str | Path, *, child: ConversionChild
    ) -> None:
        self._child = child
        self._rows_files: dict[int, tuple[Rows, str]] = {}
        self._model = model
        self._signature = signature
        self._folder = str(folder)
        self._masks: tuple[str, str] | None = None  # the SavedModel with masks that integers can hold, and a note
        names = signature.output_names

        def named(outputs: Any) -> dict[str, Any]:
            return dict(zip(names, keras.tree.flatten(outputs), strict=True))

        self._function = traced(model, signature, named)
        module = tf.Module()
        module.kept = [*(tf_variable(variable) for variable in model.variables), *self._function.graph.variables]
        with quiet_conversion():
            tf.saved_model.save(module, self._folder, signatures={SIGNATURE_KEY: self._function})

    @functools.cached_property
    def float_content(self) -> bytes:
        """The file in float32."""
        return self._converted(Conversion(self._folder, FLOAT32))

    @functools.cached_property
    def without_loops(self) -> Converter:
        """A converter of the same model with its recurrent layers unrolled; itself where there is no loop.

        TensorFlow's converter cannot find the ranges of activations in loops. It would end the process.
        """
        longest = max((tensor.shape[0] for tensor in self._signature.inputs if tensor.shape), default=0)
        if "WHILE" not in operations(self.float_content) or longest > MOST_STEPS:
            return self
        folder = Path(self._folder) / "unrolled"
        folder.mkdir()
        with unrolled(self._model):
            return Converter(self._model, self._signature, folder, child=self._child)

    def convert(self, method: str, rows: Rows = (), *, one_scale: bool = False) -> bytes:
        """The file that a method gives.

        Args:
            method: "float32", "float16", "dynamic", "int8" or "int16x8".
            rows: representative examples, arrays by name of shape (1, ...), for the last two.
            one_scale: of each kernel, not of each of its channels; for "int8".

        Raises:
            CompressionError: for a model with layers that LiteRT cannot take; the message names them.
        """
        if method == FLOAT32:
            return self.float_content
        if not rows:
            return self._converted(Conversion(self._folder, method, one_scale=one_scale))
        whole = self.without_loops
        return whole._converted(replace(whole.prepared(method, rows), one_scale=one_scale))

    def prepared(self, method: str, rows: Rows) -> Conversion:
        """The conversion by a method; representative examples go in by the order of the float file."""
        check_no_loops(named_operations(self.float_content), self._model, method)
        return self._with_rows(method, rows, self._with_masks(rows)[0])

    def quantize(self, conversion: Conversion, kept: Sequence[str]) -> bytes:
        """The file that a prepared conversion gives, with these operations in float."""
        with quiet_conversion():
            return self._child.quantize(conversion, kept)

    def mask_note(self, rows: Rows) -> str:
        """What became of masks where `rows` show the ranges; "" where there is none, or nothing was changed."""
        return self.without_loops._with_masks(rows)[1]

    def _with_masks(self, rows: Rows) -> tuple[str, str]:
        """The SavedModel with masks that integers can hold, found out once, and what is to be said of it."""
        if self._masks is None:
            few = rows[:_MOST_COMPARED]
            expected = self._outputs(self.float_content, few)
            folders: dict[float | None, str] = {None: self._folder}

            def error_of(value: float | None) -> float:
                if value is not None:
                    folders[value] = str(Path(self._folder) / f"{COPY}{value:g}")
                    copy_with_mask_value(Path(self._folder), Path(folders[value]), value)
                content = self._converted(self._with_rows("int8", few, folders[value]))
                return relative_error(expected, self._outputs(content, few))

            huge = has_huge_constants(Path(self._folder))
            best, note = best_mask_value(error_of) if huge else (None, "")
            self._masks = folders[best], note
        return self._masks

    def _outputs(self, content: bytes, rows: Rows) -> list[dict[str, np.ndarray]]:
        model = LitertModel(content, self._signature)
        return [model.run(row) for row in rows]

    def _with_rows(self, method: str, rows: Rows, folder: str) -> Conversion:
        if id(rows) not in self._rows_files:  # Rows are kept, so that their id is not used again.
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
    """What to do where the converter wants a range for whole numbers, as it does for int16; "" for another error.

    Example:
        >>> _without_range("Empty min/max for tensor serving_default_words:0", "int16x8")[:71]
        "int16x8 does not take the whole numbers in 'words', with which an embed"
    """
    found = re.search(r"Empty min/max for tensor (?:serving_default_)?([\w/]+)", text)
    if found is None:
        return ""
    return (
        f"{method} does not take the whole numbers in {found[1]!r}, with which an embedding or a gather is asked: "
        "TensorFlow's converter looks for their range. Use int8, dynamic or weight_int8."
    )


@contextlib.contextmanager
def converter_of(model: keras.Model, signature: CallSignature) -> Iterator[Converter]:
    """A converter with a folder of its own, which is removed at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="tfaccel-convert-") as folder,
        contextlib.closing(ConversionChild()) as child,
    ):
        yield Converter(model, signature, folder, child=child)


@contextlib.contextmanager
def unrolled(model: keras.Model) -> Iterator[None]:
    """Recurrent layers are traced step by step, without a loop; afterwards as before."""
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
    """TensorFlow's converter tells much that no user can act on, some of it past Python; that is left out."""
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
