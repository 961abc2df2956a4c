"""Updates only the rows of an embedding table whose ids occur in a batch, instead of the whole table.

Keras's optimizers read and write every row of a table, and of its slots, at each step. Without weight decay, momentum
and the like, a row whose gradient is zero does not change, so that it can be left out: for SGD and Adagrad, this is
exact. For optimizers whose slots decay at each step, such as Adam, it is another algorithm ("lazy"), in which a row and
its slots change only at the steps whose batch has its id.

The update itself is Keras's: the optimizer runs on the gathered rows of the table and its slots, which are then written
back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.training.private import private_api, private_slots
from tfaccel.training.steps.host_embeddings import (
    HOST,
    get_embeddings,
    host_lookup,
    is_on_host,
    known_ids,
    move_to_device,
    move_to_host,
    slots_on_host,
    tables_on_host,
)
from tfaccel.training.steps.model_parts import get_optimizers, inner_optimizer
from tfaccel.training.steps.overrides import has_own, instance_attributes, keeps_methods, left_by_user
from tfaccel.training.steps.replicas import Replicas

ROWS, ROWS_LAZY = "rows", "rows_lazy"
_OPTIMIZERS = keras.optimizers
_EXACT = (_OPTIMIZERS.SGD, _OPTIMIZERS.Adagrad)
# Their slots have one value for each weight, which depends on no other weight.
_LAZY = (
    *_EXACT,
    *(_OPTIMIZERS.Adam, _OPTIMIZERS.AdamW, _OPTIMIZERS.Adamax, _OPTIMIZERS.Nadam),
    *(_OPTIMIZERS.RMSprop, _OPTIMIZERS.Adadelta, _OPTIMIZERS.Lion),
)


def prepare_tables(model: keras.Model, how: str, where: str) -> None:
    """Checks that row updates give what was asked for, and moves tables to where they are asked for.

    Args:
        model: a compiled model.
        how, where: `embedding_updates` and `embeddings_on` of a plan.

    Raises:
        PlanError: as `check_row_updates` and `move_to_host`.
    """
    if how != "keras":
        check_row_updates(model, how)
    (move_to_host if where == "host" else move_to_device)(model)


def check_row_updates(model: keras.Model, how: str) -> None:
    """Checks that row updates give what was asked for.

    Args:
        model: a compiled model.
        how: "rows", which must be exact, or "rows_lazy".

    Raises:
        PlanError: if the model has no embedding, or an optimizer or a layer for which `how` does not hold; the message
            says which, and what can be done.
    """
    tables = get_embeddings(model)
    if not tables:
        raise PlanError(
            f"embedding_updates={how!r} is for models with keras.layers.Embedding. Received: model {model.name!r}, "
            "which has none. Use embedding_updates='keras'."
        )
    for layer in tables:
        if not keeps_methods(layer, keras.layers.Embedding, "call") or has_own(layer, "call"):
            raise PlanError(
                f"embedding_updates={how!r} needs to know how rows are looked up. Received: layer {layer.name!r} of "
                f"{type(layer).__name__}, which has a `call` of its own. Use keras.layers.Embedding, or "
                "embedding_updates='keras'."
            )
    for optimizer in get_optimizers(model).values():
        _check_optimizer(inner_optimizer(optimizer), _trained_tables(tables), how)


def _trained_tables(layers: list[keras.layers.Embedding]) -> list[keras.Variable]:
    """The tables that an optimizer updates: not those with LoRA or quantized weights."""
    tables = [layer.embeddings for layer in layers if layer.trainable]
    return [table for table in tables if isinstance(table, keras.Variable) and table.trainable]


def _check_optimizer(optimizer: Any, tables: list[keras.Variable], how: str) -> None:
    name = type(optimizer).__name__
    if type(optimizer) not in _LAZY:
        names = ", ".join(kind.__name__ for kind in (_EXACT if how == ROWS else _LAZY))
        raise PlanError(
            f"embedding_updates={how!r} is for optimizers that update each weight by itself. Received: {name}. Use one "
            f"of {names}, or embedding_updates='keras'."
        )
    touching = _what_touches_all_rows(optimizer, tables, how)
    if touching is not None:
        what, instead = touching
        raise PlanError(
            f"embedding_updates={how!r} would not give what Keras gives: {what}. Received: {name}. {instead}"
        )


def _what_touches_all_rows(optimizer: Any, tables: list[keras.Variable], how: str) -> tuple[str, str] | None:
    """What changes rows that are not in a batch, and what can be done; None if nothing does."""
    lazy = "Use SGD without momentum, Adagrad, embedding_updates='rows_lazy' (another algorithm), or 'keras'."
    if any(private_slots.has_weight_decay(optimizer, table) for table in tables):
        return (
            "weight decay changes every row of a table at each step",
            "Leave tables out (`optimizer.exclude_from_weight_decay(var_list=[layer.embeddings])`), or use "
            "embedding_updates='keras'.",
        )
    if optimizer.gradient_accumulation_steps:
        return (
            "gradients are accumulated in a tensor of the table's size",
            "Use a larger batch without accumulation, or embedding_updates='keras'.",
        )
    if optimizer.use_ema:
        return (
            "the moving average of the weights (use_ema) changes every row at each step",
            "Use use_ema=False, or embedding_updates='keras'.",
        )
    if how == ROWS_LAZY:
        return None
    if optimizer.global_clipnorm is not None:
        return ("global_clipnorm sums the gradients of all weights in another order", lazy)
    if isinstance(optimizer, _OPTIMIZERS.SGD) and optimizer.momentum:
        return ("momentum moves rows that are not in the batch, too", lazy)
    if type(optimizer) not in _EXACT:
        return ("its moments decay at each step, and so move rows that are not in the batch", lazy)
    return None


@contextlib.contextmanager
def row_updates(model: keras.Model, replicas: Replicas) -> Iterator[None]:
    """While tracing a training step: tables are read by rows, and optimizers update the rows of sparse gradients."""
    tables = tables_on_host(model)
    with slots_on_host(model), contextlib.ExitStack() as stack:
        for layer in get_embeddings(model):
            stack.enter_context(instance_attributes(layer, {"call": _lookup(layer, replicas)}))
        for optimizer in get_optimizers(model).values():
            inner = inner_optimizer(optimizer)
            attributes = {"update_step": _update_step(inner, tables, replicas), **private_slots.clipping_slices(inner)}
            stack.enter_context(instance_attributes(inner, attributes))
        yield


def _lookup(layer: keras.layers.Embedding, replicas: Replicas) -> Any:
    """Keras's lookup, without reading the whole table: the update could then not change it in place."""
    usual = layer.call

    def call(inputs: Any) -> Any:
        if is_on_host(layer):
            return host_lookup(layer, inputs, equal_gradients=replicas.num_workers > 1)
        if isinstance(inputs, tf.SparseTensor | tf.RaggedTensor) or not isinstance(layer.embeddings, keras.Variable):
            return usual(inputs)
        table = private_api.tf_variable(layer.embeddings)
        return tf.cast(tf.gather(table, known_ids(layer, inputs)), layer.compute_dtype)

    return call


def _update_step(optimizer: Any, on_host: dict[int, keras.Variable], replicas: Replicas) -> Any:
    usual = optimizer.update_step

    def update_step(gradient: Any, variable: keras.Variable, learning_rate: Any) -> None:
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        if id(variable) not in on_host:
            if is_sparse:
                _update_rows(optimizer, variable, gradient, learning_rate)
            else:
                usual(gradient, variable, learning_rate)
            return
        if not is_sparse:
            raise PlanError(
                f"embeddings_on='host' is for tables of which a step only looks up rows. Received: {variable.path}, "
                "which the model also uses as a whole, or in a loop. Use embeddings_on='device'."
            )
        if replicas.current_local == 0:  # all replicas of a process share the table
            with tf.device(HOST):
                _update_rows(optimizer, variable, gradient, learning_rate)

    return update_step


def _update_rows(optimizer: Any, table: keras.Variable, gradient: tf.IndexedSlices, learning_rate: Any) -> None:
    """Keras's update of the rows of a gradient whose indices are distinct."""
    updated = {id(one): one for one in (table, *private_slots.get_slots(optimizer, table))}
    before = {key: tf.gather(private_api.tf_variable(one), gradient.indices) for key, one in updated.items()}
    scope = keras.StatelessScope()  # in which a variable's value is that of its rows
    for key, one in updated.items():
        scope.add_update((one, before[key]))

    def assign(variable: keras.Variable, value: Any) -> None:
        scope.add_update((variable, tf.cast(value, variable.dtype)))

    attributes = {
        "assign": assign,
        "assign_add": lambda variable, value: assign(variable, variable + tf.cast(value, variable.dtype)),
        **private_slots.known_index(optimizer, table),
        "assign_sub": lambda variable, value: assign(variable, variable - tf.cast(value, variable.dtype)),
    }
    with scope, instance_attributes(optimizer, attributes):
        left_by_user(optimizer, "update_step")(gradient.values, table, learning_rate)
    for key, one in updated.items():
        rows = scope.get_current_value(one)
        if rows is not before[key]:
            handle = private_api.tf_variable(one).handle
            tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=gradient.indices, updates=rows)
            tf.raw_ops.DisableCopyOnRead(resource=handle)  # or each later step would copy the table to read it
