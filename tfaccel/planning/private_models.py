"""The private names of Keras's models that planning needs; Keras itself is not imported."""

from __future__ import annotations

from typing import Any

from tfaccel.tested_versions import private_part


def given_compile_arguments(model: Any) -> dict[str, Any]:
    """The arguments that a model was compiled with, unserialized; the public config does not hold functions."""
    return dict(private_part(model, "_compile_config.config"))


def recurrent_states(model: Any) -> list[Any]:
    """The states of a model's stateful recurrent layers, which `model.variables` omits."""
    found = []
    parts = [getattr(layer, "states", None) for layer in private_part(model, "_flatten_layers")()]
    while parts:
        part = parts.pop(0)
        if isinstance(part, list | tuple):
            parts = [*part, *parts]
        elif hasattr(part, "assign"):
            found.append(part)
    return found
