"""`TensorProto` messages, from anyone, as arrays; and arrays as such messages."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf

# Where a message holds the values of a dtype.
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


def array_of(proto: Any, dtype: np.dtype, *, max_bytes: int) -> np.ndarray:
    """The array that a message holds.

    As in TensorFlow, the last of too few values fills the rest of the shape; where there are none, zeros do.

    Args:
        proto: a `TensorProto`.
        dtype: that is wanted; object for strings.
        max_bytes: of the array, at most, however small the message is.

    Raises:
        ValueError: which says what the message holds, if that is something else, or nothing whole.
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
    except (ValueError, OverflowError) as error:  # too few or too many values, or such as the dtype does not have
        raise ValueError(f"shape {_shown(shape)} with other values than it has room for") from error
    if kind == tf.string:
        return np.array([value or b"" for value in array.ravel().tolist()], dtype=object).reshape(shape)
    # Bytes other than 0 and 1 are no truth values to the kernels.
    return array.view(np.uint8) != 0 if kind == tf.bool else array


def fill_proto(proto: Any, array: np.ndarray) -> None:
    """Writes an array into an empty `TensorProto`, its values one by one, as TensorFlow Serving does.

    Many clients read `float_val` and its like themselves.
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
        raise ValueError(f"no dtype that there is ({proto.dtype})") from error


def _shown(shape: tuple[int, ...]) -> str:
    return str(shape) if len(shape) <= 8 else f"of {len(shape)} axes"
