"""State that differs between replicas: seeds, intentionally, and moving statistics, which are averaged before use."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.graph_function import graph_function
from tfaccel.training.private import private_api
from tfaccel.training.private.private_random import global_seed_state
from tfaccel.training.steps.all_reduce import all_reduce
from tfaccel.training.steps.batch_statistics import layers_alike
from tfaccel.training.steps.replicas import Replicas

SEED_STRIDE = 1_000_003  # a prime, so that replicas' seeds do not coincide with those of other layers

_separated: weakref.WeakSet[keras.Model] = weakref.WeakSet()
_averages: weakref.WeakKeyDictionary[keras.Model, tuple[list[int], Callable[[], None]]] = weakref.WeakKeyDictionary()


def seed_variables(model: keras.Model) -> list[keras.Variable]:
    """The states of the model's seed generators (uint32, shape (2,): seed and counter), in the model's order.

    Keras's global seed generator, if it exists, comes last: a step may draw from it.
    """
    shared = global_seed_state()
    own = [v for v in model.variables if v.name == "seed_generator_state" and v is not shared]
    return own if shared is None else [*own, shared]


def separate_seeds(model: keras.Model, replicas: Replicas) -> None:
    """Gives each replica different, reproducible dropout masks; done once per model.

    In Keras every replica draws the same masks. Here replica `r` gets the seed `seed + r * SEED_STRIDE`.
    """
    if replicas.num_replicas == 1 or model in _separated:
        return
    write_seeds(model, replicas, [v.numpy() for v in seed_variables(model)])
    _separated.add(model)


def write_seeds(model: keras.Model, replicas: Replicas, states: list[np.ndarray]) -> None:
    """Sets all replicas' seed generators from the first replica's states."""
    variables = seed_variables(model)
    for replica in range(len(replicas.devices)):
        offset = np.uint32((replicas.first_replica + replica) * SEED_STRIDE)
        for component, state in zip(replicas.components(variables, replica), states, strict=True):
            component.assign(np.array([np.uint32(state[0]) + offset, state[1]], dtype=np.uint32))
    _separated.add(model)


def align_seeds(model: keras.Model, replicas: Replicas) -> None:
    """Sets every replica's counters to the first replica's, since a replica without rows skips a step."""
    variables = seed_variables(model)
    if replicas.num_replicas == 1 or not variables:
        return
    for position, variable in enumerate(variables):
        first = replicas.components([variable], 0)[0].numpy()
        counter = replicas.same_on_all_workers(partial(int, first[1]))
        for replica in range(len(replicas.devices)):
            component = replicas.components(variables, replica)[position]
            component.assign(np.array([component.numpy()[0], counter], dtype=np.uint32))


def drifting_variables(model: keras.Model) -> list[keras.Variable]:
    """Non-trainable weights that each replica updates from its own rows, such as moving statistics.

    Excludes weights that are equal on all replicas (`layers_alike`), frozen weights, and the states of recurrent
    layers, which belong to a replica's rows.
    """
    equal = {id(v) for layer in layers_alike(model) for v in layer.non_trainable_weights}
    for layer in private_api.all_layers(model):
        equal |= {id(v) for v in private_api.weights_made_trainable(layer)}
        if getattr(layer, "stateful", False):
            equal |= {id(v) for v in keras.tree.flatten(getattr(layer, "states", None) or [])}
    return [v for v in model.non_trainable_weights if id(v) not in equal and "float" in str(v.dtype)]


def average_drifting(model: keras.Model, replicas: Replicas) -> None:
    """Sets moving statistics to their mean over the replicas, on every replica."""
    if replicas.num_replicas == 1:
        return
    variables = drifting_variables(model)
    known = [id(variable) for variable in variables]
    if model not in _averages or _averages[model][0] != known:  # layers may be built later
        _averages[model] = known, _average_function(variables, replicas)
    _averages[model][1]()


def _average_function(variables: list[keras.Variable], replicas: Replicas) -> Callable[[], None]:
    strategy = replicas.strategy

    def average() -> None:
        with strategy.scope():
            values = strategy.run(lambda: [tf.identity(private_api.tf_variable(v)) for v in variables])
            sums = replicas.local_results(all_reduce(replicas, list(values)))
        for replica, local in enumerate(sums):
            for component, total in zip(replicas.components(variables, replica), local, strict=True):
                component.assign(total / replicas.num_replicas)

    return graph_function(average) if variables else lambda: None


@contextlib.contextmanager
def kept_if(condition: tf.Tensor, variables: list[Any]) -> Iterator[None]:
    """While tracing: restores the replica's values of the variables after the block if the condition holds."""
    before = [tf.identity(variable) for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(tf.where(condition, value, tf.identity(variable)))
