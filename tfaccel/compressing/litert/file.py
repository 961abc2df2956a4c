"""Inspects LiteRT files (operations, and which of them stay in float) and makes them smaller.

Source: https://ai.google.dev/edge/api/tflite/java/org/tensorflow/lite/schema (the format, a FlatBuffer).
"""

from __future__ import annotations

import collections
import functools
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np

from tfaccel.compressing.litert.schema import schema

_FILE_IDENTIFIER = b"TFL3"
_ALIGNMENT = 16  # of weights, required by the format
_MAX_BYTES = 2**31 - 1  # the size limit of a FlatBuffer
# These only convert dtypes.
_CONVERSIONS = ("QUANTIZE", "DEQUANTIZE", "CAST")
# Metadata that only TensorFlow's converter uses.
_CONVERTER_NOTES = (b"CONVERSION_METADATA",)


def operations(content: bytes) -> dict[str, int]:
    """The number of each LiteRT operation, by name; dtype conversions are left out."""
    return dict(collections.Counter(name for name, _, _ in _operations(content) if name not in _CONVERSIONS))


def float_operations(content: bytes) -> dict[str, int]:
    """The number of each operation that computes in float.

    Operations with float activations and integer weights (dynamic-range quantization) compute in integers and are
    not counted.
    """
    found: collections.Counter[str] = collections.Counter()
    for name, inputs, outputs in _operations(content):
        kinds = {kind for kind, _ in inputs + outputs}
        integer_weights = any(constant and kind in _integers() for kind, constant in inputs)
        if name not in _CONVERSIONS and kinds & _floats() and not integer_weights:
            found[name] += 1
    return dict(found)


def named_operations(content: bytes) -> list[tuple[str, list[str]]]:
    """Each operation of the main graph: its kind, and the names of its first output and of its constants."""
    model = schema().Model.GetRootAs(content, 0)
    codes = [_operation_name(model.OperatorCodes(number)) for number in range(model.OperatorCodesLength())]
    graph = model.Subgraphs(0)
    found = []
    for place in range(graph.OperatorsLength()):
        operator = graph.Operators(place)
        inputs = [operator.Inputs(index) for index in range(operator.InputsLength())]
        constants = [index for index in inputs if index >= 0 and _get_kind(model, graph.Tensors(index))[1]]
        names = [(graph.Tensors(index).Name() or b"").decode() for index in (operator.Outputs(0), *constants)]
        found.append((codes[operator.OpcodeIndex()], names))
    return found


def dense_layers(content: bytes) -> dict[str, int | None]:
    """The dense layers of the main graph: the output's name, and how many inputs a unit has weights for.

    It is None where the weights are no constants, or where something else uses them too.
    """
    model = schema().Model.GetRootAs(content, 0)
    codes = [_operation_name(model.OperatorCodes(number)) for number in range(model.OperatorCodesLength())]
    graph = model.Subgraphs(0)
    operators = [graph.Operators(place) for place in range(graph.OperatorsLength())]
    uses = collections.Counter(one.Inputs(index) for one in operators for index in range(one.InputsLength()))
    found: dict[str, int | None] = {}
    for one in operators:
        if codes[one.OpcodeIndex()] == "FULLY_CONNECTED":
            weights = graph.Tensors(one.Inputs(1))
            is_own = _get_kind(model, weights)[1] and uses[one.Inputs(1)] == 1
            name = (graph.Tensors(one.Outputs(0)).Name() or b"").decode()
            found[name] = int(weights.ShapeAsNumpy()[-1]) if is_own else None
    return found


def slim(content: bytes) -> bytes:
    """The same model in fewer bytes: without what no runtime reads, and with equal buffers shared.

    Names of inner tensors, calibration ranges and the converter's own metadata are dropped.
    Inputs, outputs and signatures keep their names.
    """
    if len(content) > _MAX_BYTES:
        return content
    model = schema().ModelT.InitFromObj(schema().Model.GetRootAs(content, 0))
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
            _slim_tensor(tensor, keep_name=number in named)
    _drop_unused_buffers(model)
    builder = _SharingBuilder(len(content))
    builder.Finish(model.Pack(builder), file_identifier=_FILE_IDENTIFIER)
    return bytes(builder.Output())


def zipped_bytes(path: str | Path) -> int:
    """The zipped size of a file (deflate, level 9)."""
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.write(path, arcname=Path(path).name)
    return len(written.getvalue())


def input_order(content: bytes) -> list[str]:
    """The signature's names of the inputs, in the order of the graph."""
    model = schema().Model.GetRootAs(content, 0)
    signature = model.SignatureDefs(0)
    entries = [signature.Inputs(number) for number in range(signature.InputsLength())]
    names = {entry.TensorIndex(): entry.Name().decode() for entry in entries}
    return [names[index] for index in model.Subgraphs(signature.SubgraphIndex()).InputsAsNumpy().tolist()]


def _slim_tensor(tensor: Any, *, keep_name: bool) -> None:
    tensor.name = tensor.name if keep_name else None
    quantization = tensor.quantization
    if quantization is None:
        return
    quantization.min = quantization.max = None
    if quantization.scale is None and quantization.details is None:
        tensor.quantization = None


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


class _SharingBuilder(flatbuffers.Builder):
    """Shares equal vectors and strings, and aligns weights."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._written: dict[tuple[str, bytes], int] = {}

    def CreateNumpyVector(self, x: np.ndarray) -> int:
        """Writes an array, or refers to an equal one already written."""
        key = (x.dtype.str, x.tobytes())
        if key not in self._written:
            if x.dtype == np.uint8:
                self.Prep(4, x.nbytes)
                self.Prep(_ALIGNMENT, x.nbytes)
            self._written[key] = super().CreateNumpyVector(x)
        return self._written[key]

    def CreateString(self, s: Any, *arguments: Any, **options: Any) -> int:
        """Writes a string, or refers to an equal one already written."""
        key = ("", s if isinstance(s, bytes) else str(s).encode())
        if key not in self._written:
            self._written[key] = super().CreateString(s, *arguments, **options)
        return self._written[key]


def _operations(content: bytes) -> Iterator[tuple[str, list[tuple[int, bool]], list[tuple[int, bool]]]]:
    """Name, inputs and outputs of each operation; for each tensor its type, and whether it is a constant."""
    model = schema().Model.GetRootAs(content, 0)
    codes = [model.OperatorCodes(number) for number in range(model.OperatorCodesLength())]
    names = [_operation_name(code) for code in codes]
    for number in range(model.SubgraphsLength()):
        graph = model.Subgraphs(number)
        tensors = [_get_kind(model, graph.Tensors(index)) for index in range(graph.TensorsLength())]
        for place in range(graph.OperatorsLength()):
            operator = graph.Operators(place)
            inputs = [operator.Inputs(index) for index in range(operator.InputsLength())]
            outputs = [operator.Outputs(index) for index in range(operator.OutputsLength())]
            yield (
                names[operator.OpcodeIndex()],
                [tensors[index] for index in inputs if index >= 0],
                [tensors[index] for index in outputs],
            )


def _get_kind(model: Any, tensor: Any) -> tuple[int, bool]:
    buffer = model.Buffers(tensor.Buffer())
    return tensor.Type(), buffer.DataLength() > 0 or buffer.Size() > 0


def _operation_name(code: Any) -> str:
    number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    custom = code.CustomCode()
    return custom.decode() if custom else _builtin_names()[number]


@functools.cache
def _builtin_names() -> dict[int, str]:
    return {number: name for name, number in vars(schema().BuiltinOperator).items() if not name.startswith("_")}


@functools.cache
def _floats() -> frozenset[int]:
    kinds = schema().TensorType
    return frozenset({kinds.FLOAT32, kinds.FLOAT16, kinds.FLOAT64})


@functools.cache
def _integers() -> frozenset[int]:
    kinds = schema().TensorType
    return frozenset({kinds.INT8, kinds.INT4, kinds.UINT8})
