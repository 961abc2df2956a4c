"""LiteRT files: what is in them, made smaller, and the ZIP archive that may follow the model.

The archive holds class names, and a description of the raw inputs. LiteRT's runtimes ignore it; the task libraries of
Android and iOS read the class names from it.

Source: https://ai.google.dev/edge/api/tflite/java/org/tensorflow/lite/schema (the format, a FlatBuffer).
"""

from __future__ import annotations

import collections
import io
import json
import zipfile
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np

from tfaccel.compressing.variant import LITERT_SUFFIX
from tfaccel.data.raw_input import FILE_NAME, RawInput, raw_input_of_json
from tfaccel.errors import ExportError, VersionError

LABELS_FILE = "labels.txt"
_FILE_IDENTIFIER = b"TFL3"
_IDENTIFIER_PLACE = slice(4, 8)
_ALIGNMENT = 16  # of weights, required by the format
_MAX_BYTES = 2**31 - 1  # the size limit of a FlatBuffer
# These only convert dtypes.
_CONVERSIONS = ("QUANTIZE", "DEQUANTIZE", "CAST")
_FLOATS = ("FLOAT32", "FLOAT16", "FLOAT64")
_INTEGERS = ("INT8", "INT4", "UINT8")
# Metadata that only TensorFlow's converter uses.
_CONVERTER_NOTES = (b"CONVERSION_METADATA",)


def check_litert() -> None:
    """Raises VersionError if LiteRT's runtime is not installed."""
    if find_spec("ai_edge_litert") is None:
        raise VersionError(
            "LiteRT files need `ai-edge-litert`, which is not installed. Install it: pip install 'tfaccel[litert]'"
        )


def schema() -> Any:
    """The module of the schema's classes, imported on first use."""
    try:
        return import_module("ai_edge_litert.schema_py_generated")
    except ModuleNotFoundError as error:
        raise VersionError(
            f"LiteRT files need `ai-edge-litert` ({error}). Install it: pip install 'tfaccel[litert]'"
        ) from error


def operations(content: bytes) -> dict[str, int]:
    """The number of each LiteRT operation, by name; dtype conversions are left out."""
    found = collections.Counter(name for _, name, _, _ in _operations(_unpacked(content)) if name not in _CONVERSIONS)
    return dict(found)


def float_operations(content: bytes) -> dict[str, int]:
    """The number of each operation that computes in float.

    Operations with float activations and integer weights (dynamic-range quantization) compute in integers and are
    not counted.
    """
    model, kinds = _unpacked(content), schema().TensorType
    floats, integers = ([getattr(kinds, name) for name in names] for names in (_FLOATS, _INTEGERS))
    found: collections.Counter[str] = collections.Counter()
    for _, name, inputs, outputs in _operations(model):
        has_floats = any(tensor.type in floats for tensor in inputs + outputs)
        integer_weights = any(tensor.type in integers and _is_constant(model, tensor) for tensor in inputs)
        if name not in _CONVERSIONS and has_floats and not integer_weights:
            found[name] += 1
    return dict(found)


def named_operations(content: bytes) -> list[tuple[str, list[str]]]:
    """Each operation of the main graph: its kind, and the names of its first output and of its constants."""
    model, found = _unpacked(content), []
    for graph, name, inputs, outputs in _operations(model):
        if graph == 0:
            constants = [tensor for tensor in inputs if _is_constant(model, tensor)]
            found.append((name, [_get_name(tensor) for tensor in (outputs[0], *constants)]))
    return found


def dense_layers(content: bytes) -> dict[str, int | None]:
    """The dense layers of the main graph: the output's name, and how many inputs a unit has weights for.

    It is None where the weights are no constants, or where something else uses them too.
    """
    model = _unpacked(content)
    main = [one for one in _operations(model) if one[0] == 0]
    uses = collections.Counter(id(tensor) for _, _, inputs, _ in main for tensor in inputs)
    found: dict[str, int | None] = {}
    for _, name, inputs, outputs in main:
        if name == "FULLY_CONNECTED":
            weights = inputs[1]
            is_own = uses[id(weights)] == 1 and _is_constant(model, weights)
            found[_get_name(outputs[0])] = int(weights.shape[-1]) if is_own else None
    return found


def slim(content: bytes) -> bytes:
    """The same model in fewer bytes: without what no runtime reads, and with equal buffers shared.

    Names of inner tensors, calibration ranges and the converter's own metadata are dropped.
    Inputs, outputs and signatures keep their names.
    """
    if len(content) > _MAX_BYTES:
        return content
    model = _unpacked(content)
    for buffer in model.buffers:
        if buffer.size:  # LiteRT's quantizer appends large weights to the FlatBuffer.
            buffer.data = np.frombuffer(content, np.uint8, buffer.size, buffer.offset)
            buffer.offset = buffer.size = 0
    model.description = None
    model.metadata = [entry for entry in model.metadata or [] if entry.name not in _CONVERTER_NOTES]
    for graph in model.subgraphs:
        graph.name = None
        named = {*np.asarray(graph.inputs).tolist(), *np.asarray(graph.outputs).tolist()}
        for number, tensor in enumerate(graph.tensors):
            tensor.name = tensor.name if number in named else None
            if quantization := tensor.quantization:
                quantization.min = quantization.max = None
                if quantization.scale is None and quantization.details is None:
                    tensor.quantization = None
    _drop_unused_buffers(model)
    return _packed(model, _SharingBuilder(len(content)))


def with_metadata(content: bytes, name: bytes, metadata: bytes) -> bytes:
    """The same model with these metadata in its own list."""
    model, buffer, entry = _unpacked(content), schema().BufferT(), schema().MetadataT()
    buffer.data = np.frombuffer(metadata, np.uint8)
    model.buffers.append(buffer)
    entry.name, entry.buffer = name, len(model.buffers) - 1
    model.metadata = [*(model.metadata or []), entry]
    return _packed(model, _AligningBuilder(len(content) + len(metadata)))


def zipped_bytes(path: str | Path) -> int:
    """The zipped size of a file (deflate, level 9)."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.write(path, arcname=Path(path).name)
    return len(written.getvalue())


def signature_names(content: bytes) -> tuple[list[str], list[str]]:
    """The signature's names of the inputs and of the outputs, in the order of the graph."""
    model = _unpacked(content)
    signature = model.signatureDefs[0]
    graph = model.subgraphs[signature.subgraphIndex]
    inputs, outputs = (
        [{entry.tensorIndex: entry.name.decode() for entry in side}.get(index, "") for index in order.tolist()]
        for side, order in ((signature.inputs, graph.inputs), (signature.outputs, graph.outputs))
    )
    return inputs, outputs


def _drop_unused_buffers(model: Any) -> None:
    """Tensors without constant data share the empty first buffer."""
    used = {entry.buffer for entry in model.metadata}
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            data = model.buffers[tensor.buffer].data
            if data is None and not tensor.isVariable:
                tensor.buffer = 0
            used.add(tensor.buffer)
    kept = [number for number in range(len(model.buffers)) if number in used or number == 0]
    places = {number: place for place, number in enumerate(kept)}
    model.buffers = [model.buffers[number] for number in kept]
    for graph in model.subgraphs:
        for tensor in graph.tensors:
            tensor.buffer = places[tensor.buffer]
    for entry in model.metadata:
        entry.buffer = places[entry.buffer]


class _AligningBuilder(flatbuffers.Builder):
    """Aligns weights as LiteRT's runtimes require."""

    def CreateNumpyVector(self, x: np.ndarray) -> int:
        """Writes an array; byte arrays start at a multiple of 16."""
        if x.dtype == np.uint8:
            self.Prep(4, x.nbytes)
            self.Prep(_ALIGNMENT, x.nbytes)
        return int(super().CreateNumpyVector(x))


class _SharingBuilder(_AligningBuilder):
    """Shares equal vectors and strings."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._written: dict[tuple[str, bytes], int] = {}

    def CreateNumpyVector(self, x: np.ndarray) -> int:
        """Writes an array, or refers to an equal one already written."""
        key = (x.dtype.str, x.tobytes())
        if key not in self._written:
            self._written[key] = super().CreateNumpyVector(x)
        return self._written[key]

    def CreateString(self, s: Any, *arguments: Any, **options: Any) -> int:
        """Writes a string, or refers to an equal one already written."""
        key = ("", s if isinstance(s, bytes) else str(s).encode())
        if key not in self._written:
            self._written[key] = super().CreateString(s, *arguments, **options)
        return self._written[key]


def _unpacked(content: bytes) -> Any:
    """The model as Python objects."""
    return schema().ModelT.InitFromObj(schema().Model.GetRootAs(content, 0))


def _packed(model: Any, builder: flatbuffers.Builder) -> bytes:
    builder.Finish(model.Pack(builder), file_identifier=_FILE_IDENTIFIER)
    return bytes(builder.Output())


def _operations(model: Any) -> Iterator[tuple[int, str, list[Any], list[Any]]]:
    """Number of the graph, name, inputs and outputs of each operation."""
    kinds = {number: name for name, number in vars(schema().BuiltinOperator).items() if not name.startswith("_")}
    names = [
        code.customCode.decode() if code.customCode else kinds[max(code.builtinCode, code.deprecatedBuiltinCode)]
        for code in model.operatorCodes
    ]
    for number, graph in enumerate(model.subgraphs):
        for operator in graph.operators:
            inputs, outputs = (
                [graph.tensors[index] for index in ([] if places is None else places) if index >= 0]
                for places in (operator.inputs, operator.outputs)
            )
            yield number, names[operator.opcodeIndex], inputs, outputs


def _is_constant(model: Any, tensor: Any) -> bool:
    buffer = model.buffers[tensor.buffer]
    return buffer.size > 0 or (buffer.data is not None and len(buffer.data) > 0)


def _get_name(tensor: Any) -> str:
    return (tensor.name or b"").decode()


def make_archive(raw_input: RawInput | None) -> bytes:
    """The archive to append to a model with these raw inputs; empty if there is nothing to record."""
    if raw_input is None:
        return b""
    names = raw_input.class_names
    files = {LABELS_FILE: "".join(f"{' '.join(name.split())}\n" for name in names)} if names else {}
    files[FILE_NAME] = json.dumps(raw_input.to_json(), ensure_ascii=False)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)  # a fixed date, so that equal models give equal files
            entry.compress_type = zipfile.ZIP_STORED if name == LABELS_FILE else zipfile.ZIP_DEFLATED
            archive.writestr(entry, text)
    return content.getvalue()


def is_litert_file(path: Path) -> bool:
    """Whether a file is a LiteRT model, by its content."""
    if path.suffix.lower() == LITERT_SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(_IDENTIFIER_PLACE.stop)[_IDENTIFIER_PLACE] == _FILE_IDENTIFIER
    except OSError:
        return False


def read_litert_raw_input(path: Path) -> RawInput | None:
    """The raw inputs recorded in a LiteRT file; None if it has none."""
    if not zipfile.is_zipfile(path):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            text = archive.read(FILE_NAME).decode() if FILE_NAME in archive.namelist() else ""
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ExportError(f"The archive appended to the model in {path} cannot be read: {error}") from error
    try:
        return raw_input_of_json(json.loads(text)) if text else None
    except Exception as error:  # the file may be from anywhere
        raise ExportError(f"The record of the raw inputs in {path} cannot be read: {error}") from error
