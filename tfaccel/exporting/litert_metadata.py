"""Metadata in a LiteRT file: what the model is, and the names of its classes.

Written in the format that Android's and iOS's task libraries read: a FlatBuffer of the schema `ModelMetadata` in the
model's own list of metadata, and the names of classes as `labels.txt` in a ZIP archive behind the model.
Source: https://ai.google.dev/edge/litert/conversion/tensorflow/metadata
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np

from tfaccel.compressing.litert.file import LABELS_FILE, make_archive
from tfaccel.compressing.litert.file import schema as litert_schema
from tfaccel.data.raw_input import RawInput

METADATA_NAME = b"TFLITE_METADATA"
_MODEL_IDENTIFIER, _METADATA_IDENTIFIER = b"TFL3", b"M001"
_ALIGNMENT = 16  # alignment of weights, required by the format
_AXIS_LABELS = 2  # type of an associated file with the labels of an axis
_MIN_PARSER_VERSION = "1.2.0"


def with_metadata(
    content: bytes, *, name: str, description: str, class_names: Sequence[str] = (), raw_input: RawInput | None = None
) -> bytes:
    """Adds metadata to a LiteRT file.

    Args:
        content: the file.
        name: name of the model.
        description: description of the model.
        class_names: the names of the classes, in the order of the first output.
        raw_input: description of the model's raw inputs.
    """
    schema = litert_schema()
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    inputs, outputs = _tensor_names(model)
    packed = _packed_metadata(name, description, (inputs, outputs), has_labels=bool(class_names))
    buffer, entry = schema.BufferT(), schema.MetadataT()
    buffer.data = np.frombuffer(packed, np.uint8)
    model.buffers.append(buffer)
    entry.name, entry.buffer = METADATA_NAME, len(model.buffers) - 1
    model.metadata = [*(model.metadata or []), entry]
    builder = _AligningBuilder(len(content) + len(packed))
    builder.Finish(model.Pack(builder), file_identifier=_MODEL_IDENTIFIER)
    return bytes(builder.Output()) + make_archive(raw_input, class_names)


def _tensor_names(model: Any) -> tuple[list[str], list[str]]:
    """The signature's names of inputs and outputs, in the order of the graph."""
    signature, graph = model.signatureDefs[0], model.subgraphs[0]
    names = [{entry.tensorIndex: entry.name for entry in side} for side in (signature.inputs, signature.outputs)]
    sides = zip(names, (graph.inputs, graph.outputs), strict=True)
    first, second = ([_text(known.get(int(index), b"")) for index in side] for known, side in sides)
    return first, second


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


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


class _AligningBuilder(flatbuffers.Builder):
    """Aligns weights as LiteRT's runtimes require."""

    def CreateNumpyVector(self, x: np.ndarray) -> int:
        """Writes an array; byte arrays start at a multiple of 16."""
        if x.dtype == np.uint8:
            self.Prep(4, x.nbytes)
            self.Prep(_ALIGNMENT, x.nbytes)
        return int(super().CreateNumpyVector(x))
