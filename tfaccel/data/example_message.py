"""Serialization of `tf.train.Example` messages without TensorFlow."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfaccel.errors import DataError

Value = bytes | str | int | float
_LISTS = (("bytes_list", "TYPE_BYTES"), ("float_list", "TYPE_FLOAT"), ("int64_list", "TYPE_INT64"))


def encode_example(features: Mapping[str, Value | Sequence[Value]]) -> bytes:
    """A serialized `tf.train.Example`.

    Args:
        features: name -> a string, bytes, an integer or a float, or several of one type.

    Raises:
        DataError: for a value of another type.

    Example:
        >>> decode_example(encode_example({"label": 3, "name": "three"}))
        {'label': [3], 'name': [b'three']}
    """
    message = _message_class()()
    for name, value in features.items():
        several: Any = [value] if np.isscalar(value) else value
        values: list[Any] = [item.encode() if isinstance(item, str) else item for item in several]
        feature = message.features.feature[name]
        if all(isinstance(item, bytes) for item in values):
            feature.bytes_list.value.extend(values)
        elif all(hasattr(item, "__index__") for item in values):
            feature.int64_list.value.extend(int(item) for item in values)
        elif all(hasattr(item, "__float__") for item in values):
            feature.float_list.value.extend(float(item) for item in values)
        else:
            raise DataError(
                f"A feature must be texts, bytes, or numbers, all of one kind. Received: {name}={value!r:.100}."
            )
    encoded: bytes = message.SerializeToString(deterministic=True)
    return encoded


def decode_example(data: bytes) -> dict[str, list[Any]]:
    """Name -> values (bytes, floats or integers) of a serialized `tf.train.Example`, in name order.

    Raises:
        DataError: if the bytes are not such a message.
    """
    from google.protobuf.message import DecodeError

    try:
        message = _message_class().FromString(data)
    except DecodeError as error:
        raise DataError(f"This is not a tf.train.Example ({error}).") from error
    features = message.features.feature
    found = {}
    for name in sorted(features):
        kind = features[name].WhichOneof("kind")
        found[name] = list(getattr(features[name], kind).value) if kind else []
    return found


@functools.cache
def _message_class() -> Any:
    """The message class, as defined by tensorflow/core/example/example.proto and feature.proto."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tfaccel/example.proto", package="tfaccel", syntax="proto3")

    def field(message: Any, name: str, number: int, kind: str, **options: Any) -> None:
        label = kinds.LABEL_REPEATED if options.pop("repeated", False) else kinds.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=kinds.Type.Value(kind), label=label, **options)

    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, kind) in enumerate(_LISTS, start=1):
        field(file.message_type.add(name=name), "value", 1, kind, repeated=True)
        field(feature, name, number, "TYPE_MESSAGE", type_name=f".tfaccel.{name}", oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    field(entry, "key", 1, "TYPE_STRING")
    field(entry, "value", 2, "TYPE_MESSAGE", type_name=".tfaccel.Feature")
    field(features, "feature", 1, "TYPE_MESSAGE", type_name=".tfaccel.Features.FeatureEntry", repeated=True)
    field(file.message_type.add(name="Example"), "features", 1, "TYPE_MESSAGE", type_name=".tfaccel.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tfaccel.Example"))
