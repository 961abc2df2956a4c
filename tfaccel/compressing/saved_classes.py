"""Classes and functions that a saved model names but that are not registered with Keras, found in their modules."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from typing import Any

_KNOWN = ("keras", "builtins", "")  # packages whose objects Keras finds by itself


def saved_modules(structure: Any) -> set[str]:
    """Modules, other than Keras's, that define what was saved.

    Example:
        >>> saved_modules({"module": "own.layers", "class_name": "Scale", "config": {"units": 3}})
        {'own.layers'}
    """
    return {module for saved in _saved_objects(structure) if (module := _module_of(saved))}


def saved_classes(structure: Any) -> dict[str, Any]:
    """Name -> class or function, for `custom_objects` of Keras's deserialization; the modules have to be imported.

    Keras finds only what was registered with `register_keras_serializable`; a class at the top level of a module can be
    found without that.

    Args:
        structure: what `keras.saving.serialize_keras_object` gave.
    """
    found = {}
    for saved in _saved_objects(structure):
        is_function = saved["class_name"] == "function"
        name = saved["config"] if is_function else saved["class_name"]
        module = sys.modules.get(_module_of(saved))
        if isinstance(name, str) and hasattr(module, name):
            found[name if is_function else str(saved.get("registered_name") or name)] = getattr(module, name)
    return found


def made_again(serialized: Mapping[str, Any]) -> Any:
    """The model, layer or operation that was saved like this; Keras changes what it reads, and so gets a copy."""
    import keras

    objects = saved_classes(serialized)
    return keras.saving.deserialize_keras_object(
        copy.deepcopy(dict(serialized)), custom_objects=objects, safe_mode=False
    )


def _module_of(saved: Mapping[str, Any]) -> str:
    """Where a class or function is from; "" for Keras's own. Keras does not say it of functions that are registered."""
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
