"""The private API that finds, replaces and creates embedding tables and the slots which an optimizer keeps for them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from tfaccel.tested_versions import private_part
from tfaccel.training.private.private_api import variable_index
from tfaccel.training.private.private_losses import patch_lock

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


def knows(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
    """Whether an optimizer is built, and updates a variable."""
    known = private_part(optimizer, "_trainable_variables_indices") if optimizer.built else {}
    return _key(optimizer, variable) in known


def replace(variable: keras.Variable, value: Any, optimizers: Iterable[keras.optimizers.Optimizer] = ()) -> None:
    """Gives a Keras variable another TensorFlow variable; the optimizers that update it still know it."""
    known = [one for one in optimizers if knows(one, variable)]
    indices = [private_part(one, "_trainable_variables_indices") for one in known]
    places = [index.pop(_key(one, variable)) for one, index in zip(known, indices, strict=True)]
    variable._value = value
    for one, index, place in zip(known, indices, places, strict=True):
        index[_key(one, variable)] = place


def _key(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> Any:
    return private_part(optimizer, "_var_key")(variable)


def new_slot(optimizer: keras.optimizers.Optimizer, variable: Any, name: str | None, initializer: Any) -> Any:
    """A new slot of a variable on the caller's device; Keras's method for TensorFlow puts it beside the variable."""
    from keras.src.optimizers import base_optimizer

    kind = private_part(base_optimizer, "BaseOptimizer")
    return kind.add_variable_from_reference(optimizer, variable, name=name, initializer=initializer)


@contextlib.contextmanager
def embeddings_built_by(build: Callable[..., None]) -> Iterator[None]:
    """Within the block, embedding layers are built by `build(usual, layer, input_shape)`, also those built after it."""
    kind, usual = keras.layers.Embedding, keras.layers.Embedding.build

    @functools.wraps(usual)
    def replaced(layer: keras.layers.Embedding, input_shape: Any = None) -> None:
        build(usual, layer, input_shape)

    with patch_lock:
        kind.build = replaced
        try:
            yield
        finally:
            kind.build = usual
