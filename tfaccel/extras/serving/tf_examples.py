"""Serialized `tf.train.Example` messages, which a signature may take instead of named tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfaccel.exporting.graph_walk import GraphWalk, Place
from tfaccel.extras.serving.base64_text import decoded, is_encoded
from tfaccel.extras.serving.request_error import RequestError

INPUT_NAME = "inputs"  # of a signature that takes examples, in TensorFlow Serving
_KINDS = {tf.float32.as_datatype_enum: "float", tf.int64.as_datatype_enum: "int64", tf.string.as_datatype_enum: "bytes"}
_INT64 = np.iinfo(np.int64)


def example_kinds(walk: GraphWalk, signature: Any) -> dict[str, str] | None:
    """The features of a signature's examples: name -> "float", "int64" or "bytes", as far as known.

    Args:
        walk: the graph.
        signature: a `SignatureDef`.

    Returns:
        None if the signature takes no examples: its input is not parsed as such, nor a string input with the name that
        TensorFlow Serving uses for examples.
    """
    if len(signature.inputs) != 1:
        return None
    ((name, info),) = signature.inputs.items()
    node = info.name.partition(":")[0]
    parsers = [place for place in walk.places() if place.node.op in ("ParseExample", "ParseExampleV2")]
    found = [_kinds(walk, place) for place in parsers if node in (walk.sources(place, 0) or ())]
    if found:
        return {key: kind for kinds in found for key, kind in kinds.items()}
    is_text = info.dtype == tf.string.as_datatype_enum and len(info.tensor_shape.dim) <= 1
    return {} if name == INPUT_NAME and is_text else None


def _kinds(walk: GraphWalk, place: Place) -> dict[str, str]:
    """The features that a node parses."""
    attributes = place.node.attr
    sparse, dense = attributes["sparse_types"].list.type, attributes["Tdense"].list.type
    if place.node.op == "ParseExampleV2":
        ragged = attributes["ragged_value_types"].list.type
        keys = [key for number in (2, 3, 4) for key in _texts(walk, place, number)]
        types = [*sparse, *dense, *ragged]
    else:
        keys = [key for number in range(len(sparse) + len(dense)) for key in _texts(walk, place, 2 + number)]
        types = [*sparse, *dense]
    if len(keys) != len(types):
        return {}
    return {key: _KINDS[kind] for key, kind in zip(keys, types, strict=True) if kind in _KINDS}


def _texts(walk: GraphWalk, place: Place, number: int) -> list[str]:
    constant = walk.constant(place, number)
    return [] if constant is None else [key.decode() for key in tf.make_ndarray(constant).ravel().tolist()]


def serialized_examples(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> np.ndarray:
    """Rows of features as an array of messages.

    Args:
        rows: rows of a request: values or lists of values, by feature name.
        kinds: what `example_kinds` found; for unknown features, integers become int64, other numbers float, and
            strings bytes.

    Raises:
        RequestError: 400, which names the example and the feature at fault.
    """
    found = np.empty(len(rows), dtype=object)
    for number, row in enumerate(rows):
        features = {}
        for name, value in row.items():
            try:
                features[name] = _feature(value if isinstance(value, list) else [value], kinds.get(name))
            except ValueError as error:
                raise RequestError(400, f"examples[{number}]: feature {name!r:.60} {error}.") from error
        message = tf.train.Example(features=tf.train.Features(feature=features))
        found[number] = message.SerializeToString()
    return found


def _feature(values: list[Any], kind: str | None) -> tf.train.Feature:
    if not values:
        return tf.train.Feature()
    found = {_kind(value) for value in values}
    if found == {"int64", "float"} or (found == {"int64"} and kind == "float"):
        found = {"float"}
    if len(found) > 1:
        raise ValueError(f"must have values of one kind. Received: {' and '.join(sorted(found))}")
    (own,) = found
    if kind is not None and own != kind:
        raise ValueError(f"must have values of kind {kind}. Received: {own}")
    if own == "bytes":
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=list(map(_bytes, values))))
    if own == "float":
        return tf.train.Feature(float_list=tf.train.FloatList(value=list(map(_float32, values))))
    if not all(_INT64.min <= value <= _INT64.max for value in values):
        raise ValueError("must have values that fit into int64")
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[int(value) for value in values]))


def _kind(value: Any) -> str:
    if isinstance(value, (bool, int)):
        return "int64"
    if isinstance(value, float):
        return "float"
    if isinstance(value, (str, bytes)) or is_encoded(value):
        return "bytes"
    raise ValueError('must have numbers, truth values, texts or {"b64": ...}, or a list of such')


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else decoded(value)


def _float32(value: Any) -> float:
    with np.errstate(over="ignore"):
        try:
            found = float(np.float32(value))
        except OverflowError:
            found = float("inf")
    if np.isinf(found) and not (isinstance(value, float) and np.isinf(value)):
        raise ValueError("must have values that fit into float32")
    return found
