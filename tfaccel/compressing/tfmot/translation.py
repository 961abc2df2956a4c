"""Builds a `tf_keras` model from the calls of a Keras 3 model. Used in a child process only.

Layers that TFMOT supports become `tf_keras` layers. All others, and those with an option that `tf_keras` does not have,
are kept as Keras 3 layers: Keras 3 on TensorFlow computes with TensorFlow tensors and variables, so a
`tf_keras` layer can call a Keras 3 layer, and train and save its variables.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import keras
import numpy as np

from tfaccel.compressing.tfmot.flat_model import Call, FlatModel, Tensor, get_layer_configs
from tfaccel.errors import CompressionError, in_one_line

_OWN = "own_"  # prefix of the names of a model's own layers
_PRUNABLE = ("kernel", "recurrent_kernel", "embeddings")
TOLERANCE = 1e-5  # largest difference of outputs, relative to the largest output
# `tf_keras` layers that TFMOT transforms, or has to see to recognize layer patterns.
_LAYERS = """
    Activation ActivityRegularization Add Average AveragePooling1D AveragePooling2D AveragePooling3D BatchNormalization
    Bidirectional Concatenate Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose Cropping1D Cropping2D
    Cropping3D Dense DepthwiseConv2D Dot Dropout ELU Embedding Flatten GRU GaussianDropout GaussianNoise
    GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D GlobalMaxPooling2D
    GlobalMaxPooling3D LSTM LayerNormalization LeakyReLU Masking MaxPooling1D MaxPooling2D MaxPooling3D Maximum Minimum
    MultiHeadAttention Multiply Permute ReLU RepeatVector Reshape SeparableConv1D SeparableConv2D SimpleRNN Softmax
    SpatialDropout1D SpatialDropout2D SpatialDropout3D Subtract UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D
    ZeroPadding2D ZeroPadding3D
"""
NATIVE_LAYERS = frozenset(_LAYERS.split())
_SAME_ACTIVATIONS = "elu exponential gelu linear mish relu selu sigmoid softmax softplus softsign tanh"
_ACTIVATIONS = {**{name: name for name in _SAME_ACTIVATIONS.split()}, "silu": "swish", "swish": "swish"}
_RENAMED = {("LeakyReLU", "negative_slope"): "alpha"}
# Options that do not change a layer's function.
_WITHOUT_EFFECT = ("seed", "use_cudnn", "flash_attention", "dtype", "name", "lora_alpha", "renorm_momentum", "weights")
# Keras 3 operations that are equivalent to a layer.
_MERGES = ("Add", "Maximum", "Minimum", "Multiply", "Subtract")
_OPERATIONS = {"Relu": "relu", "Relu6": "relu6", "Sigmoid": "sigmoid", "Silu": "silu", "Tanh": "tanh"}
_NEUTRAL = (None, False, "auto", "channels_last")  # values of options that change nothing
_OF_BASES = ("trainable", "activity_regularizer", "zero_output_for_mask")


@dataclass
class TranslatedLayers:
    """The `tf_keras` layers of a graph, by path, and why some are kept as Keras 3 layers."""

    by_path: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)


def translate(
    flat: FlatModel, weights: Mapping[str, Sequence[np.ndarray]], check_inputs: Sequence[np.ndarray]
) -> TranslatedLayers:
    """The layers of a model in `tf_keras`, each compared on a real batch with its Keras 3 layer.

    A layer without an equivalent, or with different outputs, is kept as a Keras 3 layer.

    Args:
        flat: the model; its layers are used, not copied.
        weights: path -> the layer's weights in Keras 3's order, for layers that have some.
        check_inputs: a batch, one array for each input.
    """
    import tensorflow as tf

    flat.with_weights(weights)
    names, configs = tf_names(flat), get_layer_configs(flat.serialized)
    layers = TranslatedLayers()
    tensors = {Tensor(None, index): tf.convert_to_tensor(array) for index, array in enumerate(check_inputs)}
    for number, call in enumerate(flat.calls):
        args, kwargs = _fill_in((call.args, call.kwargs), tensors)
        expected = tf.nest.flatten(call.operation(*args, **kwargs))  # in inference mode
        if call.path not in layers.kept:
            layer = layers.by_path.get(call.path)
            made = _make_native(call, layer, configs[call.path], names[call.path], tensors, expected)
            if isinstance(made, str):
                layers.kept[call.path] = made
                made = _keep(flat, call, names[call.path])
            layers.by_path[call.path] = made
        tensors |= {Tensor(number, index): tensor for index, tensor in enumerate(expected)}
    return layers


def assemble(
    flat: FlatModel,
    layers: TranslatedLayers,
    wrap: Callable[[str, Any], Any] = lambda path, layer: layer,
    after: Callable[[str, int, Any], Any] = lambda path, index, tensor: tensor,
) -> Any:
    """The `tf_keras` model: its inputs and outputs are lists, in the order of the Keras 3 model's.

    Args:
        flat, layers: the model and its layers; layers are used, not copied.
        wrap: `wrap(path, layer)` returns the layer to call instead; called once for each layer.
        after: `after(path, index, tensor)` returns the replacement of each output tensor of a layer.
    """
    import tensorflow as tf
    import tf_keras

    inputs = [
        tf_keras.Input(one.shape[1:], batch_size=one.shape[0], dtype=one.dtype, name=_plain(name))
        for one, name in zip(flat.inputs, flat.input_names, strict=True)
    ]
    tensors = {Tensor(None, index): tensor for index, tensor in enumerate(inputs)}
    wrapped: dict[str, Any] = {}
    for number, call in enumerate(flat.calls):
        layer = layers.by_path[call.path]
        if call.path not in wrapped:
            wrapped[call.path] = wrap(call.path, layer)
        first, named = (call.tensors, {}) if call.path in layers.kept else call_arguments(layer, call)
        if call.path in layers.kept and len(first) == 1:
            [first] = first
        first, named = _fill_in((first, named), tensors)
        for index, tensor in enumerate(tf.nest.flatten(wrapped[call.path](first, **named))):
            tensors[Tensor(number, index)] = after(call.path, index, tensor)
    return tf_keras.Model(inputs, [tensors[tensor] for tensor in flat.outputs])


def tf_names(flat: FlatModel) -> dict[str, str]:
    """A valid `tf_keras` name for each layer: path -> name.

    TFMOT finds weights by name, so names never equal automatic ones ("conv2d_1"), which layers added by TFMOT get.
    """
    names: dict[str, str] = {}
    taken = {_plain(name) for name in flat.input_names}
    for path in dict.fromkeys(call.path for call in flat.calls):
        name, number = f"{_OWN}{_plain(path)}", 1
        while name in taken:
            name, number = f"{_OWN}{_plain(path)}_{number}", number + 1
        names[path] = name
        taken.add(name)
    return names


def largest_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> float:
    """The largest difference of outputs, relative to the largest output (or to 1e-3 if that is larger)."""
    largest = 0.0
    for one, other in zip(ours, theirs, strict=True):
        a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
        if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
            return float("inf")
        if a.size:
            scale = max(1e-3, float(np.nanmax(np.abs(b))) if not np.isnan(b).all() else 1.0)
            largest = max(largest, float(np.nan_to_num(np.abs(a - b)).max()) / scale)
    return largest


def check_outputs(model: Any, flat: FlatModel, inputs: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Compares a translated model's outputs with the Keras 3 model's; returns the largest difference."""
    import tensorflow as tf

    outputs = tf.nest.flatten(model([tf.convert_to_tensor(array) for array in inputs], training=False))
    difference = largest_difference(outputs, expected)
    if not difference <= TOLERANCE:
        raise CompressionError(
            f"The model translated to tf_keras has different outputs ({', '.join(flat.output_names)}): the largest "
            f"difference is {difference:.2g} of the largest output, more than {TOLERANCE:g}. A layer computes "
            "differently in each process, or depends on more than its inputs. Use a post-training method."
        )
    return difference


def _make_native(
    call: Call, layer: Any, saved: Mapping[str, Any], name: str, tensors: Mapping[Tensor, Any], expected: list[Any]
) -> Any:
    """The `tf_keras` layer that computes a call, or why it cannot be translated.

    Args:
        call: the call.
        layer: the layer, if an earlier call has made it; else it is made, with this name.
        saved: the serialized Keras 3 layer.
        tensors, expected: the values of tensors, and the outputs of the Keras 3 layer.
    """
    import tensorflow as tf

    kind, is_new = saved["class_name"], layer is None
    try:
        layer = native_layer(saved, name) if is_new else layer
        first, named = _fill_in(call_arguments(layer, call), tensors)
        outputs = layer(first, **named)
        if is_new and getattr(call.operation, "weights", None):
            layer.set_weights(call.operation.get_weights())
            outputs = layer(first, **named)
    except UntranslatableError as error:
        return str(error)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        return f"tf_keras's {kind} refuses it: {in_one_line(error, 120)}"
    difference = largest_difference(tf.nest.flatten(outputs), expected)
    return layer if difference <= TOLERANCE else f"tf_keras's {kind} has different outputs ({difference:.1g})"


def _keep(flat: FlatModel, call: Call, name: str) -> Any:
    """Keeps a Keras 3 layer or operation."""
    forms = {_get_form(one) for one in flat.calls if one.path == call.path}
    if len(forms) > 1:
        raise CompressionError(
            f"Layer {call.path!r} cannot be translated: it is called in {len(forms)} ways ({sorted(forms)}). Call "
            "it with the same arguments everywhere, or use a post-training method."
        )
    kept = kept_layer_class()
    key = f"{name}:{len(kept.calls)}"
    kept.calls[key] = call
    return kept(key, name=name, trainable=bool(getattr(call.operation, "trainable", True)))


@functools.cache
def kept_layer_class() -> Any:
    """The class of `tf_keras` layers that wrap a Keras 3 layer or operation."""
    import tensorflow as tf
    import tf_keras

    class KeptLayer(tf_keras.layers.Layer):
        """Calls a Keras 3 layer or operation.

        Args:
            key: which of `calls`; TFMOT clones layers from their configs, and the clones share the Keras 3 layer.
        """

        calls: ClassVar[dict[str, Call]] = {}

        def __init__(self, key: str, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self._key = key
            operation = self.operation
            self._calls_layer = isinstance(operation, keras.layers.Layer)
            self._takes_training = self._calls_layer and "training" in inspect.signature(operation.call).parameters
            self.supports_masking = bool(self._calls_layer and operation.supports_masking)
            # A list of variables, so that they are trained, copied and saved with this layer.
            self._variables_of_keras = [one.value for one in operation.variables] if self._calls_layer else []

        @property
        def operation(self) -> Any:
            return self.calls[self._key].operation

        def call(self, inputs: Any, training: Any = None) -> Any:
            return tf.autograph.experimental.do_not_convert(self._call_keras)(inputs, training)

        def _call_keras(self, inputs: Any, training: Any) -> Any:
            values = {Tensor(None, index): tensor for index, tensor in enumerate(tf.nest.flatten(inputs))}
            args, kwargs = _fill_in(_numbered(self.calls[self._key]), values)
            # As in Keras's own models, the model's `training` argument takes precedence over the layer's.
            if self._takes_training and (training is not None or "training" not in kwargs):
                kwargs["training"] = bool(tf.get_static_value(training)) if tf.is_tensor(training) else bool(training)
            return self.operation(*args, **kwargs)

        def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
            if not self.supports_masking:
                return None
            return tf.autograph.experimental.do_not_convert(self.operation.compute_mask)(inputs, mask)

        def get_prunable_weights(self) -> list[Any]:
            """The variables that TFMOT may prune."""
            variables = self.operation.trainable_variables if self._calls_layer else []
            return [one.value for one in variables if one.name in _PRUNABLE and len(one.shape) >= 2]

        def get_config(self) -> dict[str, Any]:
            return {**super().get_config(), "key": self._key}

    return KeptLayer


def _numbered(call: Call) -> tuple[Any, Any]:
    """The arguments of a call, with inputs numbered in their order in place of its tensors."""
    positions = itertools.count()
    structure = (call.args, call.kwargs)
    numbered: tuple[Any, Any] = keras.tree.map_structure(
        lambda leaf: Tensor(None, next(positions)) if isinstance(leaf, Tensor) else leaf, structure
    )
    return numbered


def _get_form(call: Call) -> str:
    """The arguments of a call as JSON, without its tensors; equal for calls that one kept layer can make."""
    numbers = {Tensor(None, index): {"__tensor__": index} for index in range(len(call.tensors))}
    args, kwargs = _fill_in(_numbered(call), numbers)
    return json.dumps(keras.saving.serialize_keras_object({"args": args, "kwargs": kwargs}))


def _fill_in(structure: Any, values: Mapping[Tensor, Any]) -> Any:
    """The structure with the values of its tensors."""
    return keras.tree.map_structure(lambda leaf: values[leaf] if isinstance(leaf, Tensor) else leaf, structure)


def _plain(name: str) -> str:
    """A valid TensorFlow name."""
    plain = re.sub(r"[^A-Za-z0-9_.]", "_", name)
    return plain if plain[:1].isalnum() else f"x{plain}"


class UntranslatableError(Exception):
    """A layer without an equivalent in `tf_keras`; the message says why."""


def native_layer(serialized: Mapping[str, Any], name: str) -> Any:
    """A new `tf_keras` layer equivalent to a Keras 3 layer; its weights are not set.

    Args:
        serialized: the layer, serialized by `keras.saving.serialize_keras_object`, in float32.
        name: the new layer's name.
    """
    import tf_keras

    kind, config = serialized["class_name"], serialized["config"]
    parts = str(serialized.get("module")).split(".")
    if parts[0] == "keras" and "ops" in parts:
        if kind in _MERGES:
            return getattr(tf_keras.layers, kind)(name=name)
        if kind in _OPERATIONS:
            kind, config, parts = "Activation", {"activation": _OPERATIONS[kind]}, ["keras", "layers"]
    if kind not in NATIVE_LAYERS or parts[:2] != ["keras", "layers"]:
        raise UntranslatableError(f"{kind} is not a layer that TFMOT supports")
    if kind == "Activation" and _function_name(config["activation"]) == "relu6":
        return tf_keras.layers.ReLU(6.0, name=name)
    cls = getattr(tf_keras.layers, kind)
    if kind == "Bidirectional":
        return cls(**_bidirectional(config), name=name, trainable=config.get("trainable", True))
    return cls(**_arguments(kind, cls, config), name=name)


def _bidirectional(config: Mapping[str, Any]) -> dict[str, Any]:
    forward, backward = config["layer"], config.get("backward_layer")
    parts = {"layer": native_layer(forward, forward["config"]["name"]), "merge_mode": config.get("merge_mode")}
    if backward is not None:
        parts["backward_layer"] = native_layer(backward, backward["config"]["name"])
    return parts


def _arguments(kind: str, cls: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the `tf_keras` class. Initializers are left out, since the weights are set."""
    accepted = set(inspect.signature(cls.__init__).parameters) | set(_OF_BASES)
    if kind not in ("GRU", "LSTM", "SimpleRNN"):
        accepted.discard("zero_output_for_mask")
    arguments = {}
    for option, value in config.items():
        name = _RENAMED.get((kind, option), option)
        if option.endswith("_initializer") or option in _WITHOUT_EFFECT:
            continue
        if name not in accepted:
            if value not in _NEUTRAL:
                raise UntranslatableError(f"tf_keras.layers.{kind} has no option {option}={value!r}")
            continue
        arguments[name] = _value(option, value)
    return arguments


def _value(option: str, value: Any) -> Any:
    import tf_keras

    if value is None:
        return None
    if option in ("activation", "recurrent_activation"):
        name = _function_name(value)
        if name not in _ACTIVATIONS:
            raise UntranslatableError(f"tf_keras has no equivalent activation {name!r}")
        return _ACTIVATIONS[name]
    for ending, module in (("regularizer", tf_keras.regularizers), ("constraint", tf_keras.constraints)):
        if option.endswith(f"_{ending}"):
            return _rebuilt(option, value, module)
    return value


def _function_name(value: Any) -> str:
    """The name of a serialized activation: a string, or a dict for a function or an object."""
    if isinstance(value, Mapping):
        inner = value.get("config")
        return str(inner if isinstance(inner, str) else value.get("class_name"))
    return str(value)


def _rebuilt(option: str, value: Any, module: Any) -> Any:
    """A regularizer or constraint of `tf_keras` with the same settings."""
    if not isinstance(value, Mapping) or not hasattr(module, str(value.get("class_name"))):
        raise UntranslatableError(f"tf_keras has no {option} {value!r}")
    try:
        return getattr(module, value["class_name"])(**value["config"])
    except TypeError as error:
        raise UntranslatableError(f"tf_keras has no {option} {value!r} ({error})") from error


def call_arguments(layer: Any, call: Call) -> tuple[Any, dict[str, Any]]:
    """The first argument of a `tf_keras` layer's call, and the others by name, from those of the Keras 3 call."""
    names = list(inspect.signature(layer.call).parameters)
    if type(layer).__name__ in _MERGES and len(call.args) == 2:
        if not all(isinstance(value, Tensor) for value in call.args):
            raise UntranslatableError("it is not a layer but an operation with a constant")
        return list(call.args), {}
    named = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
    first = named.pop(names[0]) if names[0] in named else named.pop("inputs", named.pop("sequences", None))
    kept = {}
    for name, value in named.items():
        if value is None or (name == "training" and name not in names):
            continue
        if name not in names or name == "initial_state":
            raise UntranslatableError(f"tf_keras.layers.{type(layer).__name__} is not called with {name}")
        kept[name] = value
    return first, kept
