"""Converts a Keras model to a float32 LiteRT file with signature and metadata."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.compressing.litert.conversion import Conversion, ConversionChild, ConversionError
from tfaccel.compressing.litert.unsupported_layers import layers_with, refused_operations
from tfaccel.compressing.methods import FLOAT32
from tfaccel.data.raw_input import ImageInput, RawInput, TextInput
from tfaccel.errors import ExportError
from tfaccel.exporting.litert_metadata import with_metadata
from tfaccel.exporting.signatures import DEFAULT, Signatures, traced
from tfaccel.training.private.private_api import call_model

_MAX_REASON_LENGTH = 300  # characters


def litert_content(
    model: keras.Model,
    signatures: Signatures,
    *,
    name: str,
    raw_input: RawInput | None = None,
    rows: Mapping[str, np.ndarray],
) -> bytes:
    """The bytes of a LiteRT file with the signature `serving_default` for one example at a time.

    Args:
        model: a built Keras model in float32.
        signatures: its functions; only `serving_default` is written.
        name: name of the model, for the metadata.
        raw_input: description of its raw inputs and classes, for the metadata.
        rows: examples that define the length of variable axes.

    Raises:
        ExportError: if LiteRT does not support some layers; the message names them.
    """
    function, concrete = _of_one_example(signatures, model, rows)
    with tempfile.TemporaryDirectory(prefix="tfaccel-litert-") as folder, _quiet():
        archive = keras.export.ExportArchive()
        for resource in signatures.resources:
            archive.track(resource)
        archive.add_endpoint(DEFAULT, function)
        archive.write_out(folder, verbose=False)
        try:
            with contextlib.closing(ConversionChild()) as child:
                content = child.convert(Conversion(folder, FLOAT32, signature=DEFAULT))
        except ConversionError as error:
            raise ExportError(_refusal(error, concrete.graph, model)) from error
    description = json.dumps({"name": name, **_known(raw_input)}, ensure_ascii=False)
    classes = raw_input.class_names if raw_input is not None else ()
    return with_metadata(content, name=name, description=description, class_names=classes, raw_input=raw_input)


def _of_one_example(signatures: Signatures, model: keras.Model, rows: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
    """The model as a function of batches of one row, and its trace."""
    specs = {
        name: tf.TensorSpec((1, *rows[name].shape[1:]), spec.dtype, name=name)
        for name, spec in signatures.inputs.items()
    }
    names = list(signatures.functions[DEFAULT].structured_outputs)

    def call(**named: tf.Tensor) -> dict[str, tf.Tensor]:
        arguments = keras.tree.map_structure(lambda name: named[name], signatures.input_nest)
        outputs = keras.tree.flatten(call_model(model, arguments, training=False))
        return dict(zip(names, outputs, strict=True))

    return traced(call, specs)


def _known(raw_input: RawInput | None) -> dict[str, Any]:
    if isinstance(raw_input, ImageInput):
        size = raw_input.image_size
        return {"input": f"pixels from 0 to 255, {size} x {size} x {raw_input.num_channels}"}
    if isinstance(raw_input, TextInput):
        return {
            "input": f"ids of {raw_input.num_tokens} {raw_input.vocabulary.unit}, 0 for padding, 1 for unknown ones"
        }
    return {}


def _refusal(error: BaseException, graph: Any, model: keras.Model) -> str:
    """Why a model could not be converted, with the unsupported layers."""
    kinds = refused_operations(str(error))
    pairs = [(kind, layer.removeprefix(f"{model.name}/")) for kind, layer in layers_with(graph, kinds, model)]
    found = ", ".join(dict.fromkeys(f"{layer!r} ({kind})" for kind, layer in pairs))
    if found:
        return (
            f"LiteRT does not support these layers of the model: {found} (operation in parentheses). Replace them, or "
            "leave litert out of --formats."
        )
    reason = " ".join(str(error).split())[:_MAX_REASON_LENGTH]
    return f"LiteRT cannot convert this model ({type(error).__name__}): {reason} Leave litert out of --formats."


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the converter, whose C++ core writes to the process's standard error."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with _without_warnings():
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    loggers = [logging.getLogger("tensorflow"), logging.getLogger("absl")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
