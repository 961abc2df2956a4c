"""Converts a model to float32, since 16 bits may be slow or unsupported on the target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from tfaccel.errors import ExportError
from tfaccel.training.private.private_api import all_layers

_HALF = ("mixed_bfloat16", "mixed_float16", "bfloat16", "float16")


def float32_model(model: keras.Model) -> keras.Model:
    """Returns the model if all of it computes in float32, otherwise a float32 copy with the same weights.

    Raises:
        ExportError: if the model cannot be rebuilt from its config.
    """
    if not any(layer.dtype_policy.name in _HALF for layer in [model, *all_layers(model)]):
        return model
    try:
        config = keras.saving.serialize_keras_object(model)
        config.pop("compile_config", None)
        copy = keras.saving.deserialize_keras_object(in_float32(config))
        copy.set_weights(model.get_weights())
    except Exception as error:  # user classes may raise anything
        reason = " ".join(str(error).split())[:300]
        raise ExportError(
            f"The model computes in 16 bits, and cannot be rebuilt in float32: {type(error).__name__}: {reason} "
            "Custom classes need get_config, and must be registered with keras.saving.register_keras_serializable."
        ) from error
    return copy


def in_float32(config: Any) -> Any:
    """Replaces half precision by float32 in a config.

    Example:
        >>> in_float32({"units": 3, "dtype": {"class_name": "DTypePolicy", "config": {"name": "mixed_bfloat16"}}})
        {'units': 3, 'dtype': {'class_name': 'DTypePolicy', 'config': {'name': 'float32'}}}
    """
    if isinstance(config, Mapping):
        is_policy = config.get("class_name") == "DTypePolicy" and isinstance(config.get("config"), Mapping)
        if is_policy and config["config"].get("name") in _HALF:
            return {**config, "config": {"name": "float32"}}
        return {
            name: "float32" if name == "dtype" and isinstance(value, str) and value in _HALF else in_float32(value)
            for name, value in config.items()
        }
    return [in_float32(value) for value in config] if isinstance(config, (list, tuple)) else config
