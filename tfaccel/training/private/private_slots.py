"""The private API that finds the slots which an optimizer keeps for a weight, and whether it decays the weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from tfaccel.tested_versions import private_part
from tfaccel.training.private.private_api import variable_index

_NO_SLOTS = ("_trainable_variables", "_variables", "_accumulated_gradients")


def adam_slots(optimizer: keras.optimizers.Adam, variable: Any) -> tuple[keras.Variable, keras.Variable]:
    """First and second moment of a weight's gradients."""
    index = variable_index(optimizer, variable)
    return private_part(optimizer, "_momentums")[index], private_part(optimizer, "_velocities")[index]


def slots_of(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> list[keras.Variable]:
    """All slots of a weight that have its shape, in the optimizer's lists by weight."""
    index = variable_index(optimizer, variable)
    num_variables = len(private_part(optimizer, "_trainable_variables"))
    lists = [
        one
        for name, one in vars(optimizer).items()
        if isinstance(one, list | tuple) and len(one) == num_variables and name not in _NO_SLOTS
    ]
    slots = [one[index] for one in lists if isinstance(one[index], keras.Variable)]
    return [slot for slot in slots if tuple(slot.shape) == tuple(variable.shape)]


def has_weight_decay(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
    """Whether an optimizer decays a weight."""
    return bool(optimizer.weight_decay) and bool(private_part(optimizer, "_use_weight_decay")(variable))


def known_index(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> dict[str, Callable[[Any], int]]:
    """Attributes that make an optimizer find a weight whose value, which Keras looks it up by, is replaced."""
    index = variable_index(optimizer, variable)
    private_part(optimizer, "_get_variable_index")
    return {"_get_variable_index": lambda variable: index}
