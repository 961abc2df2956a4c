"""Embedding tables of which a step updates only the rows of its batch, and tables that are kept in main memory.

Keras's optimizers read and write every row of a table, and of its slots, at each step. Without weight decay, momentum
and the like, a row whose gradient is zero does not change, so that it can be left out: for SGD and Adagrad, this is
exact. For optimizers whose slots decay at each step, such as Adam, it is another algorithm ("lazy"), in which a row and
its slots change only at the steps whose batch has its id. The update itself is Keras's: the optimizer runs on the
gathered rows of the table and its slots, which are then written back (`row_updates`).

Tables in main memory, with their slots, are there once per process. The distinct ids of a batch are found on the host,
and their rows are copied to the device. Their gradients come back, and the optimizer updates these rows on the host
before the next step looks up its own: no row is stale.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import PlanError
from tfaccel.training.private import private_api, private_slots
from tfaccel.training.private.private_workers import give_values_of_chief
from tfaccel.training.steps.model_parts import get_optimizers, inner_optimizer
from tfaccel.training.steps.overrides import (
    allow_apply,
    attributes_of_each,
    has_own,
    instance_attributes,
    keeps_methods,
    left_by_user,
    refuse_apply,
)
from tfaccel.training.steps.replicas import Replicas
from tfaccel.training.steps.slots import assigning_by

HOST = "CPU:0"  # of this process
_ONE_TABLE = (
    "The embedding tables of this model are in main memory, once for all replicas, since it was trained with "
    "embeddings_on='host'. Train with tfaccel.fit, or build the model again for Model.fit."
)
_on_host: weakref.WeakSet[keras.layers.Embedding] = weakref.WeakSet()

ROWS, ROWS_LAZY = "rows", "rows_lazy"
_OPTIMIZERS = keras.optimizers
_EXACT = (_OPTIMIZERS.SGD, _OPTIMIZERS.Adagrad)
# Their slots have one value for each weight, which depends on no other weight.
_LAZY = (
    *_EXACT,
    *(_OPTIMIZERS.Adam, _OPTIMIZERS.AdamW, _OPTIMIZERS.Adamax, _OPTIMIZERS.Nadam),
    *(_OPTIMIZERS.RMSprop, _OPTIMIZERS.Adadelta, _OPTIMIZERS.Lion),
)


def get_embeddings(model: keras.Model) -> list[keras.layers.Embedding]:
    """The embedding layers of a model that have a table; a subclassed model need not call all of its layers."""
    layers = private_api.all_layers(model)
    return [layer for layer in layers if isinstance(layer, keras.layers.Embedding) and layer.built]


def is_on_host(layer: keras.layers.Embedding) -> bool:
    """Whether the table of a layer is a single variable in main memory."""
    return layer in _on_host


def tables_on_host(model: keras.Model) -> dict[int, keras.Variable]:
    """The tables of a model that are single variables in main memory, by their ids."""
    return {id(layer.embeddings): layer.embeddings for layer in get_embeddings(model) if is_on_host(layer)}


@contextlib.contextmanager
def tables_created_on_host() -> Iterator[None]:
    """Within the block, embedding layers create their tables in main memory, once per process, under any strategy.

    At its end, all workers have the chief's values.
    """
    created: list[keras.layers.Embedding] = []
    ended = threading.Event()

    def build(usual: Callable[..., None], layer: keras.layers.Embedding, input_shape: Any) -> None:
        with contextlib.nullcontext() if ended.is_set() else _created_on_host():
            usual(layer, input_shape)
        if not ended.is_set() and _value(layer) is not None:  # else Keras creates it later, and `move_to_host` moves it
            _on_host.add(layer)
            created.append(layer)

    with private_slots.embeddings_built_by(build):
        yield
    ended.set()
    for layer in created:
        give_values_of_chief(_value(layer))


@contextlib.contextmanager
def _created_on_host() -> Iterator[None]:
    """Within the block, variables are plain ones in main memory, under any strategy."""

    def create(usual: Any, **kwargs: Any) -> tf.Variable:
        del usual  # creates a variable with a component on each replica
        initial = kwargs["initial_value"]
        value = initial() if callable(initial) else initial
        made: list[tf.Variable] = []

        def without_strategy() -> None:
            with tf.device(HOST):
                made.append(tf.Variable(value, trainable=kwargs.get("trainable"), name=kwargs.get("name")))

        thread = threading.Thread(target=without_strategy)  # scopes of strategies are those of a thread
        thread.start()
        thread.join()
        return made[0]

    with tf.init_scope(), tf.device(HOST), tf.variable_creator_scope(create):
        yield


def _value(layer: keras.layers.Embedding) -> Any:
    table = layer.embeddings
    return private_api.tf_variable(table) if isinstance(table, keras.Variable) else None


def move_to_host(model: keras.Model) -> None:
    """Moves the tables of a built model, and the slots of its optimizers, to main memory.

    Raises:
        PlanError: if a layer needs its whole table on the device in each step; the message names it.
    """
    for layer in get_embeddings(model):
        _check(layer)
    for layer in get_embeddings(model):
        _move(model, layer, _is_plain, _copy_on_host)
        _on_host.add(layer)
    if model.distribute_strategy.num_replicas_in_sync > 1:  # Keras would update each table once for every replica
        for optimizer in get_optimizers(model).values():
            refuse_apply(optimizer, _ONE_TABLE)


def move_to_device(model: keras.Model) -> None:
    """Moves tables that an earlier training kept in main memory, and their slots, back to the model's strategy."""

    def copied(variable: keras.Variable) -> tf.Variable:
        value = private_api.tf_variable(variable).read_value()
        with tf.init_scope(), model.distribute_strategy.scope():
            return private_slots.new_value(variable, value)

    for layer in get_embeddings(model):
        if is_on_host(layer):
            _move(model, layer, lambda variable: False, copied)
            _on_host.discard(layer)
            for optimizer in get_optimizers(model).values():
                allow_apply(optimizer, _ONE_TABLE)


def _move(
    model: keras.Model,
    layer: keras.layers.Embedding,
    is_there: Callable[[keras.Variable], bool],
    copied: Callable[[keras.Variable], tf.Variable],
) -> None:
    """Moves the table of a layer and its slots, unless they are there, and drops functions that were traced with it."""
    table = layer.embeddings
    optimizers = [inner_optimizer(one) for one in get_optimizers(model).values()]
    for optimizer in optimizers:
        for slot in private_slots.get_slots(optimizer, table) if private_slots.knows(optimizer, table) else ():
            if not is_there(slot):
                private_slots.replace(slot, copied(slot))
    if not is_there(table):
        private_slots.replace(table, copied(table), optimizers)
        for one in (model, *private_api.all_layers(model)):
            if isinstance(one, keras.Model):
                one.train_function = one.test_function = one.predict_function = None


def _is_plain(variable: keras.Variable) -> bool:
    """Whether a variable is a single one in main memory."""
    value = private_api.tf_variable(variable)
    return not isinstance(value, tf.distribute.DistributedValues) and value.device.endswith(HOST)


def _copy_on_host(variable: keras.Variable) -> tf.Variable:
    value = private_api.tf_variable(variable)
    with _created_on_host():
        return tf.Variable(value.read_value(), trainable=value.trainable, name=variable.name)


def _check(layer: keras.layers.Embedding) -> None:
    what = {
        "a regularizer": layer.embeddings_regularizer is not None,
        "a constraint": layer.embeddings_constraint is not None,
        "LoRA": layer.lora_enabled,
        "quantized weights": layer.quantization_mode is not None,
    }
    for name, given in what.items():
        if given:
            raise PlanError(
                f"embeddings_on='host' copies only the rows of a batch to the device. Received: layer {layer.name!r} "
                f"with {name}, which needs the whole table in each step. Leave it out, or use embeddings_on='device'."
            )


def host_lookups(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """While tracing a step: rows of tables on the host are looked up there."""
    layers = filter(is_on_host, get_embeddings(model))
    return attributes_of_each((layer, {"call": functools.partial(host_lookup, layer)}) for layer in layers)


def host_lookup(layer: keras.layers.Embedding, ids: Any, *, equal_gradients: bool = False) -> tf.Tensor:
    """The rows of a table on the host, copied to the device of the step, each distinct one once.

    Args:
        ids: its inputs; ragged ones give ragged rows, and what is missing in sparse ones is id 0, as in Keras.
        equal_gradients: give the gradient a slice for each id, not for each distinct id, by slices of zeros. Workers
            can only exchange gradients that have the same number of slices.
    """
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_flat_values(host_lookup(layer, ids.flat_values, equal_gradients=equal_gradients))
    with tf.device(HOST):
        ids = known_ids(layer, tf.sparse.to_dense(ids) if isinstance(ids, tf.SparseTensor) else ids)
        distinct, places = tf.unique(tf.reshape(ids, [-1]))
        table, count = private_api.tf_variable(layer.embeddings), tf.size(distinct)
        if equal_gradients:
            every = tf.range(tf.size(ids))
            repeated = tf.gather(distinct, tf.where(every < count, every, 0))
            rows = _first(tf.gather(table, repeated), count)
        else:
            rows = tf.gather(table, distinct)
        shape = tf.concat([tf.shape(ids), [layer.output_dim]], 0)
    found = tf.reshape(tf.gather(tf.identity(rows), places), shape)
    found.set_shape([*ids.shape, layer.output_dim])
    return tf.cast(found, layer.compute_dtype)


@tf.custom_gradient
def _first(rows: tf.Tensor, count: tf.Tensor) -> Any:
    """The first rows; TensorFlow's own gradient would copy all of them to the device for their shape."""
    size = tf.shape(rows)[0]

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        return tf.pad(upstream, [[0, size - count], [0, 0]]), None

    return rows[:count], gradient


def known_ids(layer: keras.layers.Embedding, ids: Any) -> tf.Tensor:
    """Token ids as rows of a table; ids below 0 count from its end, as in `keras.ops.take`."""
    ids = keras.ops.convert_to_tensor(ids)
    ids = ids if ids.dtype in (tf.int32, tf.int64) else tf.cast(ids, tf.int32)
    return tf.where(ids < 0, ids + tf.constant(layer.input_dim, ids.dtype), ids)


def slots_on_host(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """Within the block, optimizers create the slots of tables on the host there."""
    tables = tables_on_host(model)
    optimizers = map(inner_optimizer, get_optimizers(model).values()) if tables else ()
    return attributes_of_each((one, _adding_slots(one, tables)) for one in optimizers)


def _adding_slots(optimizer: keras.optimizers.Optimizer, tables: dict[int, keras.Variable]) -> dict[str, Any]:
    usual = optimizer.add_variable_from_reference

    def add(reference_variable: Any, name: str | None = None, initializer: Any = "zeros") -> keras.Variable:
        if id(reference_variable) not in tables:
            return usual(reference_variable, name=name, initializer=initializer)
        with _created_on_host():
            return private_slots.new_slot(optimizer, reference_variable, name, initializer)

    return {"add_variable_from_reference": add}


def prepare_tables(model: keras.Model, how: str, where: str) -> None:
    """Checks that row updates give what was asked for, and moves tables to where they are asked for.

    Args:
        how, where: `embedding_updates` and `embeddings_on` of a plan.
    """
    if how != "keras":
        check_row_updates(model, how)
    (move_to_host if where == "host" else move_to_device)(model)


def check_row_updates(model: keras.Model, how: str) -> None:
    """Checks that row updates give what was asked for.

    Args:
        how: "rows", which must be exact, or "rows_lazy".
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

    def updating(optimizer: Any) -> dict[str, Any]:
        update_step = _update_step(optimizer, tables, replicas)
        return {"update_step": update_step, **private_slots.clipping_slices(optimizer)}

    lookups = ((layer, {"call": _lookup(layer, replicas)}) for layer in get_embeddings(model))
    updates = ((one, updating(one)) for one in map(inner_optimizer, get_optimizers(model).values()))
    with slots_on_host(model), attributes_of_each(lookups), attributes_of_each(updates):
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

    attributes = assigning_by(assign) | private_slots.known_index(optimizer, table)
    with scope, instance_attributes(optimizer, attributes):
        left_by_user(optimizer, "update_step")(gradient.values, table, learning_rate)
    for key, one in updated.items():
        rows = scope.get_current_value(one)
        if rows is not before[key]:
            handle = private_api.tf_variable(one).handle
            tf.raw_ops.ResourceScatterUpdate(resource=handle, indices=gradient.indices, updates=rows)
            tf.raw_ops.DisableCopyOnRead(resource=handle)  # or each later step would copy the table to read it
