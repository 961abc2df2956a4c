"""A model's variables under its strategy: whether they belong to it, and what differs between replicas.

Seeds differ intentionally. Moving statistics are averaged before use, and gradients that wait for an update are summed
before a callback may save them.
"""

from __future__ import annotations

import contextlib
import weakref
import zlib
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
from tfaccel.training.steps.model_parts import (
    accumulators_of_replicas,
    get_optimizers,
    get_variables,
    unlisted_variables,
)
from tfaccel.training.steps.replicas import Replicas, is_distributed

Variables = Callable[[keras.Model], list[keras.Variable]]
_combining: weakref.WeakKeyDictionary[keras.Model, dict[Any, Callable[[], None]]] = weakref.WeakKeyDictionary()


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


def separate_state(model: keras.Model, replicas: Replicas, *, accumulated: bool) -> None:
    """Before training, makes different what is each replica's own, but was loaded from a file as a copy for each.

    So may gradients be, if `accumulated`: none were added in this epoch. They then count once, on the first replica.
    """
    separate_seeds(model, replicas)
    accumulators = accumulators_of_replicas(model)
    if accumulated and _are_copies(accumulators, replicas):
        for copy in replicas.copies(accumulators)[0 if replicas.first_replica else len(accumulators) :]:
            copy.assign(tf.zeros_like(copy))


def separate_seeds(model: keras.Model, replicas: Replicas) -> None:
    """Gives each replica different, reproducible dropout masks, where all have the same seed.

    In Keras every replica draws the same masks. Here replica `r` gets the seed `seed + r * SEED_STRIDE`.
    """
    same = [one for one in seed_variables(model) if _are_copies([one], replicas)]
    if same:
        write_seeds(same, replicas, [one.numpy() for one in same])


def write_seeds(variables: list[keras.Variable], replicas: Replicas, states: list[np.ndarray]) -> None:
    """Sets all replicas' seed generators from the first replica's states."""
    for replica in range(len(replicas.devices)):
        offset = np.uint32((replicas.first_replica + replica) * SEED_STRIDE)
        for component, (seed, counter) in zip(replicas.components(variables, replica), states, strict=True):
            component.assign(np.array([np.uint32(seed) + offset, counter], dtype=np.uint32))


def align_seeds(model: keras.Model, replicas: Replicas) -> None:
    """Sets every replica's counters to the first replica's, since a replica without rows skips a step."""
    for variable in seed_variables(model) if replicas.num_replicas > 1 else ():
        copies = replicas.copies([variable])
        counter = replicas.same_on_all_workers(partial(int, copies[0].numpy()[1]))
        for copy in copies:
            copy.assign(np.array([copy.numpy()[0], counter], dtype=np.uint32))


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
    _combine(model, drifting_variables, replicas, mean=True)


def make_whole(model: keras.Model, replicas: Replicas) -> None:
    """Makes the first replica's state the whole model's, since Keras saves that one: for callbacks and validation.

    Moving statistics are averaged. It gets the gradients that all replicas have accumulated; the others then have none.
    """
    average_drifting(model, replicas)
    _combine(model, accumulators_of_replicas, replicas, mean=False)


def _are_copies(variables: list[keras.Variable], replicas: Replicas) -> bool:
    """Whether all of several replicas, of all workers, have the same values to the last bit."""
    if replicas.num_replicas == 1 or not variables:
        return False
    values = get_values(variables, replicas)
    digests = {zlib.crc32(b"".join(local[i].tobytes() for _, local in values)) for i in range(len(replicas.devices))}
    digest = digests.pop() >> 1
    return not replicas.differs_between_workers(-1 if digests else digest) and not digests


def _combine(model: keras.Model, find: Variables, replicas: Replicas, *, mean: bool) -> None:
    """Gives every replica the mean of each variable over all of them, or the first one the sum and the others zeros."""
    variables = find(model) if replicas.num_replicas > 1 else []
    functions, known = _combining.setdefault(model, {}), (mean, *map(id, variables))  # layers may be built later

    def combine() -> None:
        with replicas.strategy.scope():
            values = replicas.strategy.run(lambda: [tf.identity(private_api.tf_variable(v)) for v in variables])
            sums = replicas.local_results(all_reduce(replicas, list(values)))
        for replica, local in enumerate(sums):
            is_zero = not mean and replicas.first_replica + replica
            for component, total in zip(replicas.components(variables, replica), local, strict=True):
                component.assign(tf.zeros_like(total) if is_zero else total / replicas.num_replicas if mean else total)

    if variables:
        if known not in functions:
            functions[known] = graph_function(combine)
        functions[known]()


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
    return [(one, [np.array(copy.numpy(), copy=True) for copy in replicas.copies([one])]) for one in variables]


def restore_values(before: list[tuple[keras.Variable, list[np.ndarray]]], replicas: Replicas) -> None:
    """Gives variables the values that `get_values` has copied."""
    for variable, values in before:
        for copy, value in zip(replicas.copies([variable]), values, strict=True):
            copy.assign(value)


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
            "replica would update them. Build the model inside the scope of its strategy: `with strategy.scope(): "
            "model = ...`. That holds for pretrained parts of it, too."
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
