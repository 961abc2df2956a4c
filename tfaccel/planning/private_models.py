"""The private names of Keras's models that planning needs; Keras is imported only where there is a model."""

from __future__ import annotations

from typing import Any

from tfaccel.tested_versions import private_part


def given_compile_arguments(model: Any) -> dict[str, Any]:
    """The arguments that a model was compiled with, unserialized; the public config does not hold functions."""
    return dict(private_part(model, "_compile_config.config"))


def recurrent_states(model: Any) -> list[Any]:
    """The states of a model's stateful recurrent layers, which `model.variables` omits."""
    import keras

    layers = private_part(model, "_flatten_layers")()
    states = [one for layer in layers for one in keras.tree.flatten(getattr(layer, "states", None))]
    return [one for one in states if isinstance(one, keras.Variable)]
