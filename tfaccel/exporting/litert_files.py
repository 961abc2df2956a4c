"""Converts a Keras model to a float32 LiteRT file with a signature, and metadata: its description and classes.

Metadata are in the format that Android's and iOS's task libraries read: a FlatBuffer of the schema `ModelMetadata` in
the model's own list of metadata, and the names of classes as `labels.txt` in a ZIP archive behind the model.
Source: https://ai.google.dev/edge/litert/conversion/tensorflow/metadata
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import keras
import numpy as np
import tensorflow as tf

from tfaccel.compressing.litert.conversion import Conversion, ConversionChild, ConversionError
from tfaccel.compressing.litert.file import LABELS_FILE, make_archive, signature_names, with_metadata
from tfaccel.compressing.litert.post_training import quiet_conversion
from tfaccel.compressing.litert.unsupported_layers import layers_with, refused_operations
from tfaccel.compressing.methods import FLOAT32
from tfaccel.data.raw_input import ImageInput, RawInput, TextInput
from tfaccel.errors import ExportError, in_one_line
from tfaccel.exporting.signatures import DEFAULT, Signatures, traced

METADATA_NAME = b"TFLITE_METADATA"
_METADATA_IDENTIFIER = b"M001"
_AXIS_LABELS = 2  # type of an associated file with the labels of an axis
_MIN_PARSER_VERSION = "1.2.0"
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
    """
    specs = {
        name: tf.TensorSpec((1, *rows[name].shape[1:]), spec.dtype, name=name)
        for name, spec in signatures.inputs.items()
    }
    function, concrete = traced(signatures.traced[DEFAULT].python_function, specs)
    with tempfile.TemporaryDirectory(prefix="tfaccel-litert-") as folder, quiet_conversion():
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
    packed = _packed_metadata(
        name, description, signature_names(content), has_labels=raw_input is not None and bool(raw_input.class_names)
    )
    return with_metadata(content, METADATA_NAME, packed) + make_archive(raw_input)


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
    reason = in_one_line(error, _MAX_REASON_LENGTH)
    return f"LiteRT cannot convert this model ({type(error).__name__}): {reason} Leave litert out of --formats."


def _packed_metadata(name: str, description: str, tensors: tuple[list[str], list[str]], *, has_labels: bool) -> bytes:
    """Builds the FlatBuffer; fields are numbered as in the schema."""
    builder = flatbuffers.Builder(1024)
    file = (
        _table(builder, 5, {0: LABELS_FILE, 1: "the names of the classes"}, {2: _AXIS_LABELS}) if has_labels else None
    )
    inputs, outputs = tensors
    input_tables = [_table(builder, 7, {0: tensor}) for tensor in inputs]
    output_tables = []
    for place, tensor in enumerate(outputs):
        files = _vector(builder, [file]) if file is not None and place == 0 else None
        output_tables.append(_table(builder, 7, {0: tensor}, offsets={6: files}))
    sides = {3: _vector(builder, input_tables), 4: _vector(builder, output_tables)}
    graphs = _vector(builder, [_table(builder, 10, {0: name}, offsets=sides)])
    fields = {0: name, 1: description, 7: _MIN_PARSER_VERSION}
    builder.Finish(_table(builder, 8, fields, offsets={3: graphs}), file_identifier=_METADATA_IDENTIFIER)
    return bytes(builder.Output())


def _table(
    builder: Any,
    num_fields: int,
    texts: dict[int, str],
    bytes_: dict[int, int] | None = None,
    *,
    offsets: Mapping[int, int | None] | None = None,
) -> int:
    """Writes one table of strings, single bytes and earlier objects."""
    places: dict[int, int | None] = {slot: builder.CreateString(text) for slot, text in texts.items()}
    builder.StartObject(num_fields)
    for slot, place in {**places, **(offsets or {})}.items():
        if place is not None:
            builder.PrependUOffsetTRelativeSlot(slot, place, 0)
    for slot, value in (bytes_ or {}).items():
        builder.PrependInt8Slot(slot, value, 0)
    return int(builder.EndObject())


def _vector(builder: Any, places: Sequence[int]) -> int:
    builder.StartVector(4, len(places), 4)
    for place in reversed(places):
        builder.PrependUOffsetTRelative(place)
    return int(builder.EndVector())
