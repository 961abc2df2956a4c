"""Keeps embedding tables and their slots in main memory, once per process; a step moves only the rows of its batch.

The distinct ids of a batch are found on the host, and their rows are copied to the device. Their gradients come back,
and the optimizer updates these rows on the host (`row_updates`) before the next step looks up its own: no row is stale.
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
from tfaccel.training.private.private_broadcasts import give_values_of_chief
from tfaccel.training.steps.model_parts import get_optimizers, inner_optimizer
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.refused_apply import allow_apply, refuse_apply

HOST = "CPU:0"  # of this process
_ONE_TABLE = (
    "The embedding tables of this model are in main memory, once for all replicas, since it was trained with "
    "embeddings_on='host'. Train with tfaccel.fit, or build the model again for Model.fit."
)
_on_host: weakref.WeakSet[keras.layers.Embedding] = weakref.WeakSet()


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


@contextlib.contextmanager
def host_lookups(model: keras.Model) -> Iterator[None]:
    """While tracing a step: rows of tables on the host are looked up there."""
    with contextlib.ExitStack() as stack:
        for layer in get_embeddings(model):
            if is_on_host(layer):
                stack.enter_context(instance_attributes(layer, {"call": functools.partial(host_lookup, layer)}))
        yield


def host_lookup(layer: keras.layers.Embedding, ids: Any, *, equal_gradients: bool = False) -> tf.Tensor:
    """The rows of a table on the host, copied to the device of the step, each distinct one once.

    Args:
        layer: the layer whose table it is.
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


@contextlib.contextmanager
def slots_on_host(model: keras.Model) -> Iterator[None]:
    """Within the block, optimizers create the slots of tables on the host there."""
    tables = tables_on_host(model)
    with contextlib.ExitStack() as stack:
        for optimizer in map(inner_optimizer, get_optimizers(model).values()) if tables else ():
            stack.enter_context(instance_attributes(optimizer, _adding_slots(optimizer, tables)))
        yield


def _adding_slots(optimizer: keras.optimizers.Optimizer, tables: dict[int, keras.Variable]) -> dict[str, Any]:
    usual = optimizer.add_variable_from_reference

    def add(reference_variable: Any, name: str | None = None, initializer: Any = "zeros") -> keras.Variable:
        if id(reference_variable) not in tables:
            return usual(reference_variable, name=name, initializer=initializer)
        with _created_on_host():
            return private_slots.new_slot(optimizer, reference_variable, name, initializer)

    return {"add_variable_from_reference": add}
