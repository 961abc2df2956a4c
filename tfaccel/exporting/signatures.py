"""Converts a Keras model to functions with named tensors, for a SavedModel's signatures."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.data.raw_input import ImageInput, RawInput, TableInput, TextInput
from tfaccel.errors import ExportError
from tfaccel.exporting.preprocessing import preprocessing
from tfaccel.exporting.table_preprocessing import table_preprocessing
from tfaccel.training.private.private_api import call_model, lookup_tables

DEFAULT, RAW = "serving_default", "serving_raw"
_KERAS_OWN_NAME = re.compile(r"(keras_tensor|input|input_layer)(_\d+)?")


@dataclass(frozen=True)
class Signatures:
    """A model's functions.

    Args:
        functions: name -> concrete function with named inputs and outputs.
        traced: name -> the `tf.function`, with a single trace.
        resources: resources other than the model's weights, such as lookup tables.
        input_nest: the structure of the model's inputs, with names instead of tensors.
    """

    functions: dict[str, Any]
    traced: dict[str, Any]
    resources: Sequence[Any] = ()
    input_nest: Any = field(default=None, compare=False)

    @property
    def inputs(self) -> dict[str, tf.TensorSpec]:
        """The input specs of the signature `serving_default`."""
        return input_specs(self.functions[DEFAULT])


def make_signatures(model: keras.Model, raw_input: RawInput | None = None, *, sample: Any = None) -> Signatures:
    """Builds the signature `serving_default` of a model, and `serving_raw` if its raw inputs are known.

    Args:
        model: a built Keras model.
        raw_input: description of its raw inputs.
        sample: an input batch, needed for subclassed models, whose inputs are unknown.

    Raises:
        ExportError: if the model's inputs are unknown, or raw inputs do not match them.
    """
    nest = _input_nest(model, sample)
    paths = [(_path(path), spec) for path, spec in keras.tree.flatten_with_path(nest)]
    names = argument_names([path or _own_name(spec.name) for path, spec in paths], "inputs")
    specs = {
        name: tf.TensorSpec((None, *spec.shape[1:]), spec.dtype, name=name)
        for name, (_, spec) in zip(names, paths, strict=True)
    }
    names_nest = keras.tree.pack_sequence_as(nest, names)

    def call(**named: tf.Tensor) -> dict[str, tf.Tensor]:
        arguments = keras.tree.map_structure(lambda name: named[name], names_nest)
        return _named_outputs(model, call_model(model, arguments, training=False))

    made = {DEFAULT: traced(call, specs)}
    resources: list[Any] = []
    if isinstance(raw_input, (ImageInput, TextInput)):
        made[RAW], resources = _raw_function(model, raw_input, specs)
    if isinstance(raw_input, TableInput):
        made[RAW], resources = _table_function(model, raw_input, names_nest)
    functions = {name: concrete for name, (_, concrete) in made.items()}
    resources = [*resources, *lookup_tables(model)]
    return Signatures(functions, {name: function for name, (function, _) in made.items()}, resources, names_nest)


def input_specs(function: Any) -> dict[str, tf.TensorSpec]:
    """The input specs of a SavedModel's function, by name."""
    return dict(sorted(function.structured_input_signature[1].items()))


def output_specs(function: Any) -> dict[str, tf.TensorSpec]:
    """The output specs of a SavedModel's function, by name."""
    return {
        name: tf.TensorSpec(value.shape, value.dtype, name=name)
        for name, value in sorted(function.structured_outputs.items())
    }


def distinct_names(names: Sequence[str], fallback: str) -> list[str]:
    """Makes names unique and valid in signatures: letters, digits and underscores, no leading digit.

    Example:
        >>> distinct_names(["past", "a b", "0", ""], "inputs")
        ['past', 'a_b', 'inputs_0', 'inputs']
    """
    plain = [re.sub(r"\W", "_", name, flags=re.ASCII) for name in names]
    plain = [f"{fallback}_{name}" if name[:1].isdigit() else name or fallback for name in plain]
    taken = {name for name in plain if plain.count(name) == 1}
    found = []
    for place, name in enumerate(plain):
        if plain.count(name) > 1:
            name = f"{name}_{place}"
            while name in taken:
                name += "_"
            taken.add(name)
        found.append(name)
    return found


def argument_names(names: Sequence[str], fallback: str) -> list[str]:
    """Makes names unique and valid as arguments of functions: also no keywords and no leading underscore.

    Example:
        >>> argument_names(["class", "% change", "_id", "id", "self"], "column")
        ['column_class', 'column_change', 'column_id', 'id', 'column_self']
    """
    plain = [re.sub(r"\W", "_", name, flags=re.ASCII) for name in names]
    is_free = [not (keyword.iskeyword(name) or name == "self" or name.startswith("_")) for name in plain]
    named = zip(plain, is_free, strict=True)
    return distinct_names([name if free else f"{fallback}_{name.lstrip('_')}" for name, free in named], fallback)


def traced(call: Any, specs: dict[str, tf.TensorSpec]) -> tuple[Any, Any]:
    """Traces a `tf.function` once; returns it and its trace.

    Raises:
        ExportError: if the function cannot be traced.
    """
    function = tf.function(call, autograph=False)
    try:
        return function, function.get_concrete_function(**specs)
    except ExportError:
        raise
    except Exception as error:  # user layers may raise anything
        reason = " ".join(str(error).split())[:300]
        raise ExportError(f"The model cannot be called as a graph ({type(error).__name__}): {reason}") from error


def _input_nest(model: keras.Model, sample: Any) -> Any:
    """The structure of a model's inputs, as tensors or tensor specs."""
    if getattr(model, "inputs", None):
        if isinstance(model, keras.Sequential) or not isinstance(model, keras.Model):
            return model.inputs[0] if len(model.inputs) == 1 else list(model.inputs)
        return model.input
    if sample is None:
        raise ExportError(
            f"The inputs of {type(model).__name__} are unknown, unlike those of functional and sequential models. Give "
            "a batch: export(..., sample=x)."
        )
    check_batch(keras.tree.flatten(sample))
    return keras.tree.map_structure(_get_spec, sample)


def check_batch(leaves: Sequence[Any]) -> None:
    """Refuses a sample whose inputs are not arrays of rows.

    Raises:
        ExportError: if one is a single value.
    """
    for leaf in leaves:
        if np.ndim(leaf) == 0:
            raise ExportError(
                "`sample` must be a batch: for each input of the model, an array with one row per example. "
                f"Received: {leaf!r}. Give it as the model takes it: export(..., sample=x)."
            )


def _get_spec(leaf: Any) -> tf.TensorSpec:
    tensor = tf.convert_to_tensor(leaf)
    kind = {tf.float64: tf.float32, tf.int64: tf.int32}.get(tensor.dtype, tensor.dtype)
    return tf.TensorSpec(tensor.shape, kind, name="")


def _own_name(name: str | None) -> str:
    return "" if name is None or _KERAS_OWN_NAME.fullmatch(name) else name


def _path(path: Any) -> str:
    """The path of a tensor in nested dictionaries; "" in lists, where an index is not informative."""
    text = "_".join(map(str, path))
    return "" if text.replace("_", "").isdigit() else text


def _named_outputs(model: keras.Model, outputs: Any) -> dict[str, tf.Tensor]:
    paths = [(_path(path), value) for path, value in keras.tree.flatten_with_path(outputs)]
    known = _output_names(model)
    own = known if len(known) == len(paths) else [""] * len(paths)
    names = distinct_names([path or name for (path, _), name in zip(paths, own, strict=True)], "outputs")
    return {name: _as_float32(value) for name, (_, value) in zip(names, paths, strict=True)}


def _output_names(model: keras.Model) -> list[str]:
    """The names of the output layers; "" for names that Keras generated."""
    if isinstance(model, keras.Sequential):
        operations = [model.layers[-1]] if model.layers else []
    else:
        by_name = {operation.name: operation for operation in getattr(model, "operations", ())}
        operations = [by_name.get(name) for name in getattr(model, "output_names", None) or ()]
    return ["" if operation is None or _is_made_up(operation) else operation.name for operation in operations]


def _is_made_up(operation: Any) -> bool:
    plain = re.sub(r"(_\d+)?$", "", operation.name).replace("_", "")
    return bool(plain == type(operation).__name__.lower())


def _as_float32(value: Any) -> tf.Tensor:
    """Converts half precision, which few clients support, to float32."""
    tensor = tf.convert_to_tensor(value)
    return tf.cast(tensor, tf.float32) if tensor.dtype in (tf.bfloat16, tf.float16) else tensor


def _raw_function(model: keras.Model, raw_input: Any, specs: dict[str, tf.TensorSpec]) -> tuple[Any, list[Any]]:
    if len(specs) != 1:
        raise ExportError(
            f"Raw inputs are supported for models with one input. Received: {len(specs)}: {', '.join(specs)}."
        )
    prepare, raw_spec, resources = preprocessing(raw_input)
    ((_, spec),) = specs.items()

    def call(**named: tf.Tensor) -> dict[str, tf.Tensor]:
        tensor = tf.cast(prepare(named[raw_spec.name]), spec.dtype)
        if not spec.shape.is_compatible_with(tensor.shape):
            raise ExportError(f"The model takes tensors of shape {spec.shape}; raw inputs give {tensor.shape}.")
        outputs = _named_outputs(model, call_model(model, tensor, training=False))
        return _classified(outputs, raw_input)

    return traced(call, {raw_spec.name: raw_spec}), resources


def _table_function(model: keras.Model, raw_input: TableInput, names_nest: Any) -> tuple[Any, list[Any]]:
    encode, specs, resources = table_preprocessing(raw_input.encoding, column_names(raw_input))
    wanted = {name for name, columns in _get_columns(raw_input).items() if columns}
    names = set(keras.tree.flatten(names_nest))
    if names != wanted:
        raise ExportError(
            f"A model of this table must have the inputs {', '.join(sorted(wanted))}. "
            f"Received: {', '.join(sorted(names))}."
        )

    def call(**columns: tf.Tensor) -> dict[str, tf.Tensor]:
        inputs = encode(**columns)
        arguments = keras.tree.map_structure(lambda name: inputs[name], names_nest)
        return _classified(_named_outputs(model, call_model(model, arguments, training=False)), raw_input)

    return traced(call, specs), resources


def column_names(raw_input: TableInput) -> list[str]:
    """The names of a table's columns in `serving_raw`, in the order of the encoding's `sources`."""
    return argument_names(list(raw_input.encoding.sources), "column")


def _get_columns(raw_input: TableInput) -> dict[str, Sequence[Any]]:
    return {"numbers": raw_input.encoding.numeric, "categories": raw_input.encoding.categorical}


def _classified(outputs: dict[str, tf.Tensor], raw_input: RawInput) -> dict[str, tf.Tensor]:
    """Converts logits to the predicted class and all probabilities, if classes are known."""
    values = next(iter(outputs.values()))
    names = raw_input.class_names
    if not names or len(outputs) != 1 or values.shape.rank != 2 or values.shape[1] != len(names):
        return outputs
    probabilities = tf.nn.softmax(values) if raw_input.outputs == "logits" else values
    label = tf.gather(tf.constant(names), tf.argmax(probabilities, axis=1))
    return {"label": label, "probabilities": probabilities}
