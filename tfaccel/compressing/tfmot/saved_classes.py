"""Finds classes and functions of a saved model that are not registered with Keras."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from typing import Any

_KNOWN = ("keras", "builtins", "")  # packages whose objects Keras finds itself


def saved_modules(structure: Any) -> set[str]:
    """Modules outside Keras that define the saved objects.

    Example:
        >>> saved_modules({"module": "own.layers", "class_name": "Scale", "config": {"units": 3}})
        {'own.layers'}
    """
    return {module for saved in _saved_objects(structure) if (module := _get_module(saved))}


def saved_classes(structure: Any) -> dict[str, Any]:
    """Name -> class or function, for `custom_objects` of Keras's deserialization; the modules must be importable.

    Keras finds only what was registered with `register_keras_serializable`; a class at the top level of a module can be
    found without registration.

    Args:
        structure: the output of `keras.saving.serialize_keras_object`.
    """
    found = {}
    for saved in _saved_objects(structure):
        is_function = saved["class_name"] == "function"
        name = saved["config"] if is_function else saved["class_name"]
        module = sys.modules.get(_get_module(saved))
        if isinstance(name, str) and hasattr(module, name):
            found[name if is_function else str(saved.get("registered_name") or name)] = getattr(module, name)
    return found


def rebuild(serialized: Mapping[str, Any]) -> Any:
    """Deserializes a model, layer or operation. Keras modifies its input, so it gets a copy."""
    import keras

    objects = saved_classes(serialized)
    return keras.saving.deserialize_keras_object(
        copy.deepcopy(dict(serialized)), custom_objects=objects, safe_mode=False
    )


def _get_module(saved: Mapping[str, Any]) -> str:
    """The module of a class or function; "" for Keras's own. Keras does not record it for registered functions."""
    import keras

    module = str(saved["module"])
    if saved["class_name"] == "function" and module == "builtins":
        module = str(getattr(keras.saving.get_registered_object(str(saved["config"])), "__module__", ""))
    return "" if module.split(".")[0] in _KNOWN else module


def _saved_objects(structure: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(structure, Mapping):
        if isinstance(structure.get("module"), str) and "class_name" in structure:
            yield structure
        for value in structure.values():
            yield from _saved_objects(value)
    elif isinstance(structure, (list, tuple)):
        for value in structure:
            yield from _saved_objects(value)
