"""Converts the messages of a gRPC request to the inputs of a signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfaccel.extras.serving.request_error import RequestError
from tfaccel.extras.serving.request_inputs import Inputs, InputSpec, check_names, fits, in_columns, read_examples
from tfaccel.extras.serving.tensor_protos import get_array


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

    Raises:
        RequestError: 400, naming the example and the input that do not fit the signature.
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
