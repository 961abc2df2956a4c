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

from tfaccel.compressing.tfmot.flat_model import HALF, in_float32
from tfaccel.data.raw_input import ImageInput, RawInput, TableInput, TextInput
from tfaccel.errors import ExportError, in_one_line
from tfaccel.exporting.preprocessing import preprocessing, table_preprocessing
from tfaccel.training.private.private_api import all_layers, call_model, lookup_tables

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

    @property
    def input_names(self) -> list[str]:
        """The names of these inputs, in the order of the model's."""
        return list(keras.tree.flatten(self.input_nest))


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

    made, resources = {DEFAULT: traced(call, specs)}, list(lookup_tables(model))
    if isinstance(raw_input, (ImageInput, TextInput, TableInput)):
        made[RAW], tables = _raw_function(model, raw_input, specs, names_nest)
        resources = [*tables, *resources]
    functions = {name: concrete for name, (_, concrete) in made.items()}
    return Signatures(functions, {name: function for name, (function, _) in made.items()}, resources, names_nest)


def input_specs(function: Any) -> dict[str, tf.TensorSpec]:
    """The input specs of a SavedModel's function, by name."""
    return dict(sorted(function.structured_input_signature[1].items()))


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
        concrete = function.get_concrete_function(**specs)
    except ExportError:
        raise
    except Exception as error:  # user layers may raise anything
        reason = in_one_line(error, 300)
        raise ExportError(f"The model cannot be called as a graph ({type(error).__name__}): {reason}") from error
    # TensorFlow holds them in a set. In a fixed order, equal models are written as equal files.
    places = {id(captured): place for place, captured in enumerate(concrete.captured_inputs)}
    concrete.graph.variables = sorted(concrete.graph.variables, key=lambda v: places.get(id(v.handle), -1))
    return function, concrete


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
    """Refuses a sample whose inputs are not arrays of rows."""
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


def _raw_function(
    model: keras.Model, raw_input: Any, specs: dict[str, tf.TensorSpec], names_nest: Any
) -> tuple[Any, list[Any]]:
    """The function of raw inputs, and its lookup tables."""
    if isinstance(raw_input, TableInput):
        prepare, raw_specs, tables = table_preprocessing(raw_input.encoding, column_names(raw_input))
        columns = {"numbers": raw_input.encoding.numeric, "categories": raw_input.encoding.categorical}
        wanted = sorted(name for name, some in columns.items() if some)
        if sorted(specs) != wanted:
            raise ExportError(
                f"A model of this table must have the inputs {', '.join(wanted)}. Received: {', '.join(sorted(specs))}."
            )
    elif len(specs) != 1:
        raise ExportError(
            f"Raw inputs are supported for models with one input. Received: {len(specs)}: {', '.join(specs)}."
        )
    else:
        prepare_one, raw_spec, tables = preprocessing(raw_input)
        raw_specs = {raw_spec.name: raw_spec}
        ((name, spec),) = specs.items()

        def prepare(**named: tf.Tensor) -> dict[str, tf.Tensor]:
            tensor = tf.cast(prepare_one(named[raw_spec.name]), spec.dtype)
            if not spec.shape.is_compatible_with(tensor.shape):
                raise ExportError(f"The model takes tensors of shape {spec.shape}; raw inputs give {tensor.shape}.")
            return {name: tensor}

    def call(**named: tf.Tensor) -> dict[str, tf.Tensor]:
        arguments = keras.tree.map_structure(prepare(**named).__getitem__, names_nest)
        return _classified(_named_outputs(model, call_model(model, arguments, training=False)), raw_input)

    return traced(call, raw_specs), tables


def column_names(raw_input: TableInput) -> list[str]:
    """The names of a table's columns in `serving_raw`, in the order of the encoding's `sources`."""
    return argument_names(list(raw_input.encoding.sources), "column")


def _classified(outputs: dict[str, tf.Tensor], raw_input: RawInput) -> dict[str, tf.Tensor]:
    """Converts logits to the predicted class and all probabilities, if classes are known."""
    values = next(iter(outputs.values()))
    names = raw_input.class_names
    if not names or len(outputs) != 1 or values.shape.rank != 2 or values.shape[1] != len(names):
        return outputs
    probabilities = tf.nn.softmax(values) if raw_input.outputs == "logits" else values
    label = tf.gather(tf.constant(names), tf.argmax(probabilities, axis=1))
    return {"label": label, "probabilities": probabilities}


def float32_model(model: keras.Model) -> keras.Model:
    """Returns the model if all of it computes in float32, otherwise a float32 copy with the same weights."""
    if not any(layer.dtype_policy.name in HALF for layer in [model, *all_layers(model)]):
        return model
    try:
        config = keras.saving.serialize_keras_object(model)
        config.pop("compile_config", None)
        copy = keras.saving.deserialize_keras_object(in_float32(config))
        copy.set_weights(model.get_weights())
    except Exception as error:  # user classes may raise anything
        reason = in_one_line(error, 300)
        raise ExportError(
            f"The model computes in 16 bits, and cannot be rebuilt in float32: {type(error).__name__}: {reason} "
            "Custom classes need get_config, and must be registered with keras.saving.register_keras_serializable."
        ) from error
    return copy
