"""Whether a model's variables belong to its strategy, and how those of optimizers and metrics come to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.training.private import private_api
from tfaccel.training.steps.host_embeddings import tables_on_host
from tfaccel.training.steps.model_parts import get_optimizers, get_variables, unlisted_variables
from tfaccel.training.steps.replicas import Replicas, is_distributed

_INSIDE = "Build the model inside the scope of its strategy: `with strategy.scope(): model = ...`."


def get_replicas(model: keras.Model) -> Replicas:
    """The replicas of a model, whose weights must have been created under the strategy that trains it.

    A weight that was not is shared by all replicas, and each of them would update it.

    Raises:
        PlanError: if they were not, or if the current scope is that of another strategy.
    """
    replicas = Replicas(model.distribute_strategy)
    strategy = replicas.strategy
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not strategy:
        raise PlanError(
            f"The model was built under {_get_name(strategy)}. Received: a call inside the scope of "
            f"{_get_name(tf.distribute.get_strategy())}. Call tfaccel outside of any scope, which it needs no "
            "more than Keras does once the model is built, or build the model inside this scope."
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

    Raises:
        PlanError: if an optimizer was built outside the scope.
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
