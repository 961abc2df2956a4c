"""Moves variables to other devices, using the private API of Keras's and TensorFlow's variables.

A Keras variable stays the same object, and so does the key under which an optimizer knows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.tested_versions import private_part


def move(variable: keras.Variable, devices: Sequence[str]) -> None:
    """Moves a variable's values, one for each replica, to devices."""
    value = variable._value
    if isinstance(value, tf.distribute.DistributedValues):
        components = list(value.values)
        if all(component.device.endswith(device) for component, device in zip(components, devices, strict=True)):
            return
        moved = [_moved(one, device) for one, device in zip(components, devices, strict=True)]
        policy = private_part(value, "_policy", package="tensorflow")
        kind: Any = type(value)
        variable._value = kind(value.distribute_strategy, moved, value.aggregation, var_policy=policy)
    elif not value.device.endswith(devices[0]):
        variable._value = _moved(value, devices[0])


def _moved(value: Any, device: str) -> Any:
    """A variable with the same value, name and key on another device, whatever scope of a strategy is entered."""
    from tensorflow.python.ops import resource_variable_ops

    kind = private_part(resource_variable_ops, "ResourceVariable", package="tensorflow")
    with tf.init_scope(), tf.device(device):
        moved = kind(
            tf.identity(value.read_value()),
            trainable=value.trainable,
            name=value.name.split(":")[0],
            dtype=value.dtype,
            aggregation=value.aggregation,
        )
    private_part(moved, "_unique_id", package="tensorflow")
    moved._unique_id = value._unique_id
    return moved


def get_every_slot(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> list[keras.Variable]:
    """All that an optimizer keeps for a weight, in lists by weight: slots of any shape, averages, accumulators."""
    known = private_part(optimizer, "_trainable_variables")
    index = next((place for place, one in enumerate(known) if one is variable), None)
    if index is None:
        return []
    found = []
    for name, values in vars(optimizer).items():
        if name in ("_trainable_variables", "_variables"):
            continue
        if isinstance(values, list | tuple) and len(values) == len(known):
            found.append(values[index])
        elif isinstance(values, dict):
            found += [values[key] for key in (index, private_part(optimizer, "_var_key")(variable)) if key in values]
    return [one for one in found if isinstance(one, keras.Variable) and one is not variable]
