"""Translates a Keras 3 layer into an equivalent `tf_keras` layer. Used in a child process only.

Layers that TFMOT supports become `tf_keras` layers. All others, and those with an option that `tf_keras` does not have,
are kept as Keras 3 layers (see `translation_model`).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from tfaccel.compressing.tfmot.translation_source import Call, Tensor

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


class UntranslatableError(Exception):
    """A layer without an equivalent in `tf_keras`; the message says why."""


def native_layer(serialized: Mapping[str, Any], name: str) -> Any:
    """A new `tf_keras` layer equivalent to a Keras 3 layer; its weights are not set.

    Args:
        serialized: the layer, serialized by `keras.saving.serialize_keras_object`, in float32.
        name: the new layer's name.

    Raises:
        UntranslatableError: if `tf_keras` has no such layer, or not with these options.
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
    """The first argument of a `tf_keras` layer's call, and the others by name, from those of the Keras 3 call.

    Raises:
        UntranslatableError: if the `tf_keras` layer does not take one of them.
    """
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
