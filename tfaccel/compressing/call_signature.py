"""How a model is called: names, shapes and dtypes of its inputs, and names of its outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import CompressionError, in_one_line
from tfaccel.training.private.private_api import call_model

SIGNATURE_KEY = "serving_default"
_CASTS = dict.fromkeys(("float64", "float16", "bfloat16"), "float32")
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True)
class InputTensor:
    """One input tensor of a model.

    Attributes:
        name: its name in the signature.
        shape: the shape of one example.
        dtype: a NumPy dtype name.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class CallSignature:
    """The inputs and outputs of a model called on one example.

    Attributes:
        inputs: the input tensors, in the order of `input_nest`.
        input_nest: the structure of the model's inputs, with names in place of tensors.
        output_nest: the structure of the model's outputs, with names in place of tensors.
    """

    inputs: tuple[InputTensor, ...]
    input_nest: Any
    output_nest: Any

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in the order of `output_nest`."""
        return list(keras.tree.flatten(self.output_nest))

    def rows(self, x: Any, *, what: str = "a batch") -> Iterator[dict[str, np.ndarray]]:
        """The examples of a batch, one by one: arrays by name, of shape (1, ...), cast to the model's dtypes.

        Args:
            x: a batch, in any nested structure with the right number of arrays.
            what: what error messages call it.

        Raises:
            CompressionError: if the number of arrays or a shape is wrong.
        """
        leaves = keras.tree.flatten(x)
        if len(leaves) != len(self.inputs):
            raise _wrong_number([tensor.name for tensor in self.inputs], len(leaves), what)
        named = {tensor.name: _as_kind(leaf, tensor, what) for tensor, leaf in zip(self.inputs, leaves, strict=True)}
        for row in range(len(next(iter(named.values())))):
            yield {name: array[row : row + 1] for name, array in named.items()}


def get_signature(model: keras.Model, x: Any, *, what: str = "a batch") -> CallSignature:
    """The signature of a model for examples like those of a batch.

    Args:
        model: a built Keras model.
        x: a nest of arrays, of shape (rows, ...).
        what: what error messages call them.

    Raises:
        CompressionError: if inputs are not numeric, have a shape that the model does not accept, or are too few or
            too many.
    """
    own = {tensor.name: tensor for tensor in getattr(model, "inputs", None) or ()}
    leaves = [(_name(path), np.asarray(leaf)) for path, leaf in keras.tree.flatten_with_path(x)]
    if own and len(leaves) != len(own):
        raise _wrong_number(list(own), len(leaves), what)
    if len(leaves) == len(own) and not all(name in own for name, _ in leaves):
        leaves = [(name, leaf) for name, (_, leaf) in zip(own, leaves, strict=True)]
    names = _distinct([name or "inputs" for name, _ in leaves])
    inputs = [_input_tensor(name, leaf, own.get(path), what) for name, (path, leaf) in zip(names, leaves, strict=True)]
    signature = CallSignature(tuple(inputs), keras.tree.pack_sequence_as(x, names), None)
    return replace(signature, output_nest=_output_nest(model, signature))


def _input_tensor(name: str, leaf: np.ndarray, own: Any, what: str) -> InputTensor:
    """An input as found in the data, checked against the model's own spec."""
    _check_kind(name, leaf, what)
    if leaf.ndim < 1:
        raise CompressionError(
            f"Input {name!r} must be an array with a row for each example. Received: {what} of shape {leaf.shape}."
        )
    shape = tuple(map(int, leaf.shape[1:]))
    if own is not None and not tf.TensorShape(own.shape[1:]).is_compatible_with(shape):
        raise _wrong_shape(name, tuple(own.shape[1:]), leaf.shape, what)
    dtype, casts = (leaf.dtype, {**_CASTS, "int64": "int32"}) if own is None else (own.dtype, _CASTS)
    return InputTensor(name, shape, casts.get(str(dtype), str(dtype)))


def _output_nest(model: keras.Model, signature: CallSignature) -> Any:
    """The structure of the model's outputs for one example, with names in place of tensors."""
    try:
        made = traced(model, signature, lambda outputs: outputs).structured_outputs
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, tf.errors.OpError) as error:
        text = in_one_line(error, _SHOWN_CHARACTERS)
        shapes = ", ".join(
            f"{tensor.name}: (1, {', '.join(map(str, tensor.shape))}) {tensor.dtype}" for tensor in signature.inputs
        )
        raise CompressionError(f"The model cannot be called with one example ({shapes}): {text}") from error
    paths = [_name(path) for path, _ in keras.tree.flatten_with_path(made)]
    known = list(getattr(model, "output_names", None) or ())
    if len(known) == len(paths) and not all(path in known for path in paths):
        paths = paths if all(path and not path.isdigit() for path in paths) else known
    return keras.tree.pack_sequence_as(made, _distinct([path or "outputs" for path in paths]))


def traced(model: keras.Model, signature: CallSignature, get_outputs: Callable[[Any], Any]) -> Any:
    """The model's call on one example as a concrete function, whose arguments are the inputs by name.

    Args:
        model: a Keras model.
        signature: its inputs; `output_nest` need not be set.
        get_outputs: a function applied to the model's outputs.
    """
    specs = {t.name: tf.TensorSpec((1, *t.shape), t.dtype, name=t.name) for t in signature.inputs}

    def call(**named: Any) -> Any:
        inputs = keras.tree.map_structure(named.__getitem__, signature.input_nest)
        return get_outputs(call_model(model, inputs, training=False))

    return tf.function(call, autograph=False).get_concrete_function(**specs)


def _name(path: Any) -> str:
    return "_".join(map(str, path))


def _distinct(names: list[str]) -> list[str]:
    """Unique names that are valid in a signature: letters, digits and underscores."""
    plain = [re.sub(r"\W", "_", name) for name in names]
    plain = [f"input_{name}" if name[:1].isdigit() else name for name in plain]
    return [f"{name}_{place}" if plain.count(name) > 1 else name for place, name in enumerate(plain)]


def _check_kind(name: str, array: np.ndarray, what: str) -> None:
    """Raises CompressionError for an array that is not numeric."""
    if np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_ or str(array.dtype) in _CASTS:
        return
    hint = ""
    if array.dtype.kind in "OSU":
        hint = " A model of text is compressed without its text vectorization, with token ids as its inputs."
    raise CompressionError(
        f"Input {name!r} must be an array of numbers. Received: {what} of shape {array.shape}, {array.dtype}.{hint}"
    )


def _as_kind(leaf: Any, tensor: InputTensor, what: str) -> np.ndarray:
    array = np.asarray(leaf)
    if array.shape[1:] != tensor.shape or array.ndim < 1:
        raise _wrong_shape(tensor.name, tensor.shape, array.shape, what)
    _check_kind(tensor.name, array, what)
    with np.errstate(invalid="ignore"):
        found = np.ascontiguousarray(array, tensor.dtype)
    if np.issubdtype(found.dtype, np.integer) and not np.array_equal(found, array):
        wrong = array[found != array].flat[0]
        raise CompressionError(f"Input {tensor.name!r} takes integers ({tensor.dtype}). Received: {what} with {wrong}.")
    return found


def _wrong_number(names: list[str], received: int, what: str) -> CompressionError:
    return CompressionError(
        f"The model takes {len(names)} inputs ({', '.join(names)}). Received: {what} with {received}. Give several "
        "inputs as a dictionary or a list; a tuple is (inputs, targets)."
    )


def _wrong_shape(name: str, wanted: tuple[int | None, ...], received: tuple[int, ...], what: str) -> CompressionError:
    return CompressionError(
        f"Input {name!r} must be of shape (rows, {', '.join(map(str, wanted))}). Received: {what} of shape {received}. "
        "Give one example per row, as the model takes them."
    )
