"""A model's variables under its strategy: whether they belong to it, and what differs between replicas.

Seeds differ intentionally. Moving statistics are averaged before use.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.graph_function import graph_function
from tfaccel.training.private import private_api
from tfaccel.training.private.private_random import SEED_STRIDE, global_seed_state
from tfaccel.training.steps.all_reduce import all_reduce
from tfaccel.training.steps.batch_statistics import layers_alike
from tfaccel.training.steps.embeddings import tables_on_host
from tfaccel.training.steps.model_parts import get_optimizers, get_variables, unlisted_variables
from tfaccel.training.steps.replicas import Replicas, is_distributed

_separated: weakref.WeakValueDictionary[int, keras.Variable] = weakref.WeakValueDictionary()  # by identity
_averages: weakref.WeakKeyDictionary[keras.Model, tuple[list[int], Callable[[], None]]] = weakref.WeakKeyDictionary()

_INSIDE = "Build the model inside the scope of its strategy: `with strategy.scope(): model = ...`."


def is_seed(variable: keras.Variable) -> bool:
    """Whether a variable is the state of a seed generator."""
    return bool(variable.name == "seed_generator_state")


def seed_variables(model: keras.Model) -> list[keras.Variable]:
    """The states of the model's seed generators (uint32, shape (2,): seed and counter), in the model's order.

    Keras's global seed generator, if it exists, comes last: a step may draw from it.
    """
    shared = global_seed_state()
    own = [v for v in model.variables if is_seed(v) and v is not shared]
    return own if shared is None else [*own, shared]


def separate_seeds(model: keras.Model, replicas: Replicas) -> None:
    """Gives each replica different, reproducible dropout masks; done once per seed generator.

    In Keras every replica draws the same masks. Here replica `r` gets the seed `seed + r * SEED_STRIDE`.
    """
    new = [one for one in seed_variables(model) if _separated.get(id(one)) is not one]
    if replicas.num_replicas > 1:
        write_seeds(new, replicas, [one.numpy() for one in new])


def write_seeds(variables: list[keras.Variable], replicas: Replicas, states: list[np.ndarray]) -> None:
    """Sets all replicas' seed generators from the first replica's states."""
    for replica in range(len(replicas.devices)):
        offset = np.uint32((replicas.first_replica + replica) * SEED_STRIDE)
        for component, state in zip(replicas.components(variables, replica), states, strict=True):
            component.assign(np.array([np.uint32(state[0]) + offset, state[1]], dtype=np.uint32))
    _separated.update({id(one): one for one in variables})


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
    local = range(len(replicas.devices))
    return [(one, [np.array(replicas.components([one], i)[0].numpy(), copy=True) for i in local]) for one in variables]


def restore_values(before: list[tuple[keras.Variable, list[np.ndarray]]], replicas: Replicas) -> None:
    """Gives variables the values that `get_values` has copied."""
    for variable, values in before:
        for replica, value in enumerate(values):
            replicas.components([variable], replica)[0].assign(value)


def get_replicas(model: keras.Model) -> Replicas:
    """The replicas of a model, whose weights must have been created under the strategy that trains it.

    A weight that was not is shared by all replicas, and each of them would update it.
    """
    replicas = Replicas(model.distribute_strategy)
    strategy = replicas.strategy
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not strategy:
        active = _get_name(tf.distribute.get_strategy())
        raise PlanError(
            f"The model was built under {_get_name(strategy)}. Received: a call inside the scope of "
            f"{'another ' * (_get_name(strategy) == active)}{active}. Call tfaccel outside of any scope, which it "
            "needs no more than Keras does once the model is built, or build the model inside this scope."
        )
    on_host = tables_on_host(model)  # once for all replicas, which share them
    weights = [one for one in model.weights if id(one) not in on_host]
    odd = [one.path for one in _outside(weights, strategy)] if replicas.num_replicas > 1 else []
    if odd:
        raise PlanError(
            f"{len(odd)} of the model's {len(model.weights)} weights, such as {odd[0]!r}, were created outside the "
            f"scope of the {_get_name(strategy)} with {replicas.num_replicas} replicas that trains it, so that each "
            f"replica would update them. {_INSIDE} That holds for pretrained parts of it, too."
        )
    return replicas


def move_into_scope(model: keras.Model) -> None:
    """Gives each replica its own copy of variables that were created outside the scope, by `compile` for example.

    These are the states of metrics, seeds and optimizers that are not built. If all replicas shared them, a step
    counter would count each step several times.
    """
    strategy = model.distribute_strategy
    if not is_distributed(strategy):
        return
    kept, held = {id(one) for one in model.weights}, []
    for name, optimizer in get_optimizers(model).items():
        if not optimizer.built:
            private_api.build_under(strategy, optimizer)
            held += unlisted_variables(optimizer)
            continue
        kept |= {id(one) for one in optimizer.variables}  # their slots may have places of their own
        if list(_outside([private_api.raw_iterations(optimizer)], strategy)):
            raise PlanError(
                f"model.{name} was built outside the scope of the {type(strategy).__name__} that the model was built "
                "under. Compile the model with a new optimizer."
            )
    moved = list(_outside([one for one in (*get_variables(model), *held) if id(one) not in kept], strategy))
    values = [strategy.experimental_local_results(private_api.tf_variable(one))[0].numpy() for one in moved]
    with tf.init_scope(), strategy.scope():
        for variable, value in zip(moved, values, strict=True):
            private_api.create_again(variable, value)


def _outside(variables: Iterable[keras.Variable], strategy: tf.distribute.Strategy) -> Iterable[keras.Variable]:
    for variable in variables:
        value: Any = private_api.tf_variable(variable)
        if isinstance(value, tf.Variable) and not strategy.extended.variable_created_in_scope(value):
            yield variable


def _get_name(strategy: tf.distribute.Strategy) -> str:
    return type(strategy).__name__ if is_distributed(strategy) else "no strategy"
