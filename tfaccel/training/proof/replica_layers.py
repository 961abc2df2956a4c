"""Layers whose numbers are those of a replica: on one device, run on each replica's rows with its own state.

These are layers that draw random numbers, and BatchNormalization over a replica's own rows. With the seeds and moving
statistics of the replicas, one device computes for each share of the rows what the replica computes. Where that is not
possible, they run in inference mode. The rows of a batch are a nest of dense, ragged and sparse tensors.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_api
from tfaccel.training.steps.batch_statistics import layers_alike
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import Replicas, split_rows


class ReplicaLayers:
    """The layers of a model that run on shares of the rows.

    Args:
        model: a built model.
        replicas: its replicas, all in this process.

    Attributes:
        components: the variables of each replica that these layers change.
        draws: whether one of the layers draws random numbers.
        runs: whether one of the layers is being traced.
    """

    def __init__(self, model: keras.Model, replicas: Replicas) -> None:
        self._replicas = replicas
        drawing = _drawing_layers(model)
        own = {id(layer): layer for layer in (*layers_by_replica(model), *drawing)}
        self.draws = bool(drawing)
        self._variables = {place: _get_state(layer) for place, layer in own.items()}
        self._layers = list(own.values())
        self._components = {
            place: [replicas.components(variables, i) for i in range(replicas.num_replicas)]
            for place, variables in self._variables.items()
        }
        self.components = [one for parts in self._components.values() for part in parts for one in part]
        self.runs = False

    def __bool__(self) -> bool:
        return bool(self._layers)

    @contextlib.contextmanager
    def on_shares(self, data: Any) -> Iterator[None]:
        """While tracing a step of one device on a batch: the layers run on each replica's rows alone."""
        leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None and leaf.shape.rank]
        num_rows = tf.shape(leaves[0])[0]
        with contextlib.ExitStack() as stack:
            for layer in self._layers:
                stack.enter_context(instance_attributes(layer, {"call": self._call(layer, num_rows)}))
            yield

    def _call(self, layer: keras.layers.Layer, num_rows: tf.Tensor) -> Callable[..., Any]:
        left, number = layer.call, self._replicas.num_replicas  # with what contexts outside have put in its place
        variables, components = self._variables[id(layer)], self._components[id(layer)]

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.runs:  # in a layer that is on its share already
                return left(*args, **kwargs)
            outputs = []
            for replica in range(number):
                some_args, some_kwargs = keras.tree.map_structure(
                    lambda value, replica=replica: _share(value, num_rows, replica, number), (args, kwargs)
                )
                with private_api.local_variables(variables, components[replica]), self._running():
                    outputs.append(left(*some_args, **some_kwargs))
            return keras.tree.map_structure(lambda *parts: _joined(parts), *outputs)

        return call

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        self.runs = True
        try:
            yield
        finally:
            self.runs = False


def _drawing_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The layers that draw from seeds of their own; the recurrent layer for its cell, which draws once a call."""
    layers = [layer for layer in private_api.all_layers(model) if layer is not model]
    of_cells = [one for layer in layers for one in keras.tree.flatten(getattr(layer, "cell", None)) if one is not None]
    cells = {id(one) for cell in of_cells for one in (cell, *getattr(cell, "cells", ()))}
    return [layer for layer in layers if id(layer) not in cells and any(_get_seeds(one) for one in _with_cells(layer))]


def _with_cells(layer: keras.layers.Layer) -> list[Any]:
    cell = getattr(layer, "cell", None)
    return [layer] if cell is None else [layer, cell, *getattr(cell, "cells", ())]


_RATES = ("dropout", "recurrent_dropout", "rate", "stddev")


def _get_seeds(layer: Any) -> list[keras.Variable]:
    """The seeds that a layer draws from; none where its rates are all 0."""
    rates = [value for name in _RATES if isinstance(value := getattr(layer, name, None), int | float)]
    if rates and not any(rates):
        return []
    return [value.state for value in vars(layer).values() if isinstance(value, keras.random.SeedGenerator)]


def _get_state(layer: keras.layers.Layer) -> list[keras.Variable]:
    """What a layer's call changes: seeds and moving statistics; gradients belong to the weights of one device."""
    seeds = [seed for one in _with_cells(layer) for seed in _get_seeds(one)]
    moving = layer.non_trainable_variables if isinstance(layer, keras.layers.BatchNormalization) else []
    return list({id(one): one for one in (*seeds, *moving)}.values())


def _share(value: Any, num_rows: tf.Tensor, replica: int, number: int) -> Any:
    """A replica's part of a tensor with one or more entries for each row of the batch; anything else as it is."""
    if not (isinstance(value, tf.Tensor) and value.shape.rank):
        return value
    times = tf.shape(value)[0] // num_rows
    start, stop = split_rows(num_rows, replica, number)
    return value[start * times : stop * times]


def _joined(parts: Sequence[Any]) -> Any:
    if not (isinstance(parts[0], tf.Tensor) and parts[0].shape.rank):
        return parts[0]
    return tf.concat(parts, axis=0)


def layers_by_replica(model: keras.Model) -> list[keras.layers.Layer]:
    """The BatchNormalization layers whose statistics, as planned, are those of a replica's own rows."""
    alike = {id(layer) for layer in layers_alike(model)}
    return [
        layer
        for layer in private_api.all_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization) and id(layer) not in alike
    ]


def draws(layer: keras.layers.Layer) -> bool:
    """Whether a layer draws random numbers in training, and none in inference mode."""
    draws = any(isinstance(value, keras.random.SeedGenerator) for value in vars(layer).values())
    return draws and "training" in inspect.signature(layer.call).parameters


@contextlib.contextmanager
def in_inference_mode(layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """Within the block, these layers run in inference mode, whatever mode they are called in."""
    with contextlib.ExitStack() as stack:
        for layer in layers:
            stack.enter_context(instance_attributes(layer, {"call": _inference_call(layer)}))
        yield


def _inference_call(layer: keras.layers.Layer) -> Callable[..., Any]:
    left = layer.call  # with what contexts outside of this one have put in its place
    signature = inspect.signature(type(layer).call)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(layer, *args, **kwargs)
        bound.arguments["training"] = False
        return left(*bound.args[1:], **bound.kwargs)

    return call


def some_rows(batch: Any, first: int, num_rows: int) -> Any:
    """Rows of a batch of dense, ragged or sparse tensors, from the first one given."""

    def of(leaf: Any) -> Any:
        if leaf is None or not leaf.shape.rank:
            return leaf
        if isinstance(leaf, tf.SparseTensor):
            size = [num_rows, *leaf.dense_shape.numpy()[1:]]
            return tf.sparse.slice(leaf, [first] + [0] * (leaf.shape.rank - 1), size)
        return leaf[first : first + num_rows]

    return keras.tree.map_structure(of, batch)


def get_specs(data: Any, known: Any = None) -> Any:
    """The specs of a batch.

    Args:
        data: the batch.
        known: the specs of all batches, whose unknown sizes stay unknown; None takes the sizes of this one.
    """
    leaves, others = tf.nest.flatten(data), tf.nest.flatten(known)
    if len(others) != len(leaves):
        others = [None] * len(leaves)
    return tf.nest.pack_sequence_as(data, list(map(_get_spec, leaves, others)))


def _get_spec(leaf: Any, known: Any) -> Any:
    spec = None if leaf is None else tf.type_spec_from_value(leaf)
    if spec is None or not spec.shape.rank or not isinstance(known, tf.TypeSpec) or known.shape.rank != spec.shape.rank:
        return spec
    shape = [None if of_all is None else size for size, of_all in zip(spec.shape, known.shape, strict=True)]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)


def reversed_rows(data: Any, num_shares: int = 1) -> Any:
    """A batch in reverse order; or each replica's share of it, where the layers that run on shares draw nothing."""
    num_rows = get_num_rows(data)
    shares = (split_rows(num_rows, share, num_shares) for share in range(num_shares))
    order = tf.concat([tf.range(int(stop) - 1, int(start) - 1, -1, tf.int64) for start, stop in shares], axis=0)

    def of(leaf: Any) -> Any:
        if isinstance(leaf, tf.SparseTensor):
            rows, *others = tf.unstack(leaf.indices, axis=1)
            indices = tf.stack([tf.gather(order, rows), *others], axis=1)  # the order is its own inverse
            return tf.sparse.reorder(tf.SparseTensor(indices, leaf.values, leaf.dense_shape))
        return tf.gather(leaf, order) if leaf is not None and leaf.shape.rank else leaf

    return keras.tree.map_structure(of, data)


def every_nth_row(data: Any, n: int) -> Any:
    """Every n-th row of a batch, or as many of the first ones where some are sparse."""
    has_sparse = any(isinstance(leaf, tf.SparseTensor) for leaf in keras.tree.flatten(data))
    if has_sparse:
        return some_rows(data, 0, max(1, get_num_rows(data) // n))
    return keras.tree.map_structure(lambda leaf: leaf[::n] if leaf is not None and leaf.shape.rank else leaf, data)


def get_num_rows(data: Any) -> int:
    """The rows of a batch."""
    leaves = [leaf for leaf in keras.tree.flatten(data) if leaf is not None and leaf.shape.rank]
    return int(leaves[0].shape[0]) if leaves else 0
