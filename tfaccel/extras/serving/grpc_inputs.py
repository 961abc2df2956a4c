"""Converts between the messages of gRPC requests and arrays, and checks the untrusted ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.extras.serving.messages import RequestError
from tfaccel.extras.serving.request_inputs import Inputs, InputSpec, check_names, fits, in_columns, read_examples

# The message field of each dtype.
_FIELDS = {
    "float_val": (tf.float32,),
    "double_val": (tf.float64,),
    "int_val": (
        tf.int8,
        tf.uint8,
        tf.int16,
        tf.uint16,
        tf.int32,
        tf.qint8,
        tf.quint8,
        tf.qint16,
        tf.quint16,
        tf.qint32,
    ),
    "int64_val": (tf.int64,),
    "uint32_val": (tf.uint32,),
    "uint64_val": (tf.uint64,),
    "bool_val": (tf.bool,),
    "string_val": (tf.string,),
    "half_val": (tf.float16, tf.bfloat16),
    "scomplex_val": (tf.complex64,),
    "dcomplex_val": (tf.complex128,),
}
_FIELD_OF = {kind: field for field, kinds in _FIELDS.items() for kind in kinds}


def inputs_of_tensors(tensors: Mapping[str, Any], specs: Mapping[str, InputSpec], *, max_bytes: int) -> Inputs:
    """The arrays in the `inputs` of a `PredictRequest`.

    Args:
        tensors: `TensorProto` messages by name.
        specs: the inputs of the signature.
        max_bytes: maximum size of an array.

    Raises:
        RequestError: 400, naming the input that does not fit the signature.
    """
    check_names(tensors, specs, '"inputs"')
    return in_columns({name: _array(tensors[name], spec, max_bytes) for name, spec in specs.items()})


def _array(proto: Any, spec: InputSpec, max_bytes: int) -> np.ndarray:
    rows = f"rows of {spec.row}" if spec.shape else spec.dtype.name if spec.dtype != object else "strings"
    place = f'"inputs": {spec.name!r} must be {rows}.'
    try:
        array = get_array(proto, spec.dtype, max_bytes=max_bytes)
    except ValueError as error:
        raise RequestError(400, f"{place} Received: {error}.") from error
    if array.ndim and not len(array):
        raise RequestError(400, f"{place} Received: none.")
    if spec.shape is not None and not (array.ndim == len(spec.shape) and fits(array.shape[1:], spec)):
        raise RequestError(400, f"{place} Received: shape {array.shape}.")
    return array


def inputs_of_examples(given: Any, specs: Mapping[str, InputSpec], kinds: Mapping[str, str] | None) -> Inputs:
    """The arrays in the `Input` of a `ClassificationRequest` or `RegressionRequest`.

    The features of an example are lists; where the signature takes tensors by name, each gets the shape of its input.

    Args:
        given: the message.
        specs: the inputs of the signature.
        kinds: types of features, if it takes serialized `tf.train.Example` messages; None if it takes tensors by name.
    """
    kind = given.WhichOneof("kind")
    part = given if kind is None else getattr(given, kind)
    examples = [] if kind is None else [_values(example) for example in part.examples]
    context = _values(part.context) if kind == "example_list_with_context" else {}
    if kinds is None:
        examples, context = [_shaped(example, specs) for example in examples], _shaped(context, specs)
        if not examples:
            raise RequestError(400, '"examples" must be a list of at least one. Received: [].')
    return read_examples({"examples": examples, "context": context}, specs, kinds)


def _values(example: Any) -> dict[str, list[Any]]:
    """The features of a `tf.train.Example`."""
    found = {}
    for name, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        found[name] = [] if kind is None else list(getattr(feature, kind).value)
    return found


def _shaped(values: Mapping[str, list[Any]], specs: Mapping[str, InputSpec]) -> dict[str, Any]:
    """Lists reshaped to their inputs; unchanged where the number of values does not fit."""
    return {name: _nest(value, specs[name]) if name in specs else value for name, value in values.items()}


def _nest(values: list[Any], spec: InputSpec) -> Any:
    shape = [] if spec.shape is None else [-1 if size is None else size for size in spec.shape[1:]]
    if spec.shape is None or shape.count(-1) > 1:
        return values
    array = np.empty(len(values), dtype=object)
    array[:] = values
    try:
        return array.reshape(shape).tolist()
    except ValueError:
        return values


def get_array(proto: Any, dtype: np.dtype, *, max_bytes: int) -> np.ndarray:
    """The array in a message.

    As in TensorFlow, the last value is repeated to fill the shape; without values it is all zeros.

    Args:
        proto: a `TensorProto`.
        dtype: the expected dtype; object for strings.
        max_bytes: maximum size of the array, which may be much larger than the message.
    """
    kind = _dtype(proto)
    if kind not in _FIELD_OF or np.dtype(kind.as_numpy_dtype) != dtype:
        raise ValueError(f"dtype {kind.name}")
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    if proto.tensor_shape.unknown_rank or min(shape, default=0) < 0:
        raise ValueError(f"shape {shape}, which is not known in full")
    if math.prod(shape) * dtype.itemsize > max_bytes:
        raise ValueError(f"shape {_shown(shape)}, whose values take more than {max_bytes} bytes")
    fields = {field.name for field, _ in proto.ListFields() if field.name in _FIELDS}
    if fields - {_FIELD_OF[kind]}:
        raise ValueError(f"values in {', '.join(sorted(fields))}; those of {kind.name} stand in {_FIELD_OF[kind]}")
    if kind == tf.string and proto.tensor_content:
        raise ValueError("tensor_content; strings stand in string_val")
    try:
        array: np.ndarray = tf.make_ndarray(proto)
    except (ValueError, OverflowError) as error:  # too few or too many values, or out of range
        raise ValueError(f"shape {_shown(shape)} with other values than it has room for") from error
    if kind == tf.string:
        return np.array([value or b"" for value in array.ravel().tolist()], dtype=object).reshape(shape)
    # Kernels expect booleans to be 0 or 1.
    return array.view(np.uint8) != 0 if kind == tf.bool else array


def fill_proto(proto: Any, array: np.ndarray) -> None:
    """Writes an array into an empty `TensorProto`, in its typed value field, as TensorFlow Serving does.

    Many clients read `float_val` and similar fields directly.
    """
    kind = tf.as_dtype(array.dtype)
    field = _FIELD_OF.get(kind)
    if kind.is_quantized or kind.is_complex or field is None:
        proto.CopyFrom(tf.make_tensor_proto(array))
        return
    proto.dtype = kind.as_datatype_enum
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    values = np.ascontiguousarray(array).view(np.uint16) if field == "half_val" else array
    flat = values.ravel().tolist()
    if kind == tf.string:
        flat = [value if isinstance(value, bytes) else str(value).encode() for value in flat]
    getattr(proto, field).extend(flat)


def _dtype(proto: Any) -> tf.DType:
    try:
        return tf.as_dtype(proto.dtype)
    except TypeError as error:
        raise ValueError(f"an unknown dtype ({proto.dtype})") from error


def _shown(shape: tuple[int, ...]) -> str:
    return str(shape) if len(shape) <= 8 else f"of {len(shape)} axes"
