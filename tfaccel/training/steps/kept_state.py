"""Training that leaves no trace: every variable of a model gets back its value, on every replica."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras
import numpy as np

from tfaccel.training.private.private_random import global_seed_state
from tfaccel.training.steps.model_parts import get_variables
from tfaccel.training.steps.replicas import Replicas


@contextlib.contextmanager
def kept_state(model: keras.Model, replicas: Replicas) -> Iterator[None]:
    """Within the block, a built model may be trained; afterwards it is as before, to the last bit.

    That covers weights, moving statistics, seeds, metrics, the states of recurrent layers and the optimizers' state
    (slots, number of steps, loss scale, accumulated gradients), on each replica, and the traced training function.
    """
    before = get_values(get_variables(model), replicas)
    shared, train_function = global_seed_state(), model.train_function
    try:
        yield
    finally:
        model.train_function = train_function
        restore_values(before, replicas)
        created = global_seed_state()
        if shared is None and created is not None:  # as it was when Keras created it, before any number was drawn
            created.assign(np.array([created.numpy()[0], 0], dtype=np.uint32))


def get_values(variables: list[keras.Variable], replicas: Replicas) -> list[tuple[keras.Variable, list[np.ndarray]]]:
    """Each variable with a copy of its values on the local replicas."""
    found = []
    for variable in variables:
        components = [replicas.components([variable], replica)[0] for replica in range(len(replicas.devices))]
        found.append((variable, [np.array(component.numpy(), copy=True) for component in components]))
    return found


def restore_values(before: list[tuple[keras.Variable, list[np.ndarray]]], replicas: Replicas) -> None:
    """Gives variables the values that `get_values` has copied."""
    for variable, values in before:
        for replica, value in enumerate(values):
            replicas.components([variable], replica)[0].assign(value)
