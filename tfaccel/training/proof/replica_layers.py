"""Layers whose numbers are those of a replica: on one device, run on each replica's rows with its own state.

These are layers that draw random numbers, and BatchNormalization over a replica's own rows. With the seeds and moving
statistics of the replicas, one device computes for each share of the rows what the replica computes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_api
from tfaccel.training.proof.still_layers import layers_by_replica
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import Replicas, split_rows


class ReplicaLayers:
    """The layers of a model that run on shares of the rows.

    Args:
        model: a built model.
        replicas: its replicas, all in this process.

    Attributes:
        components: the variables of each replica that these layers change.
        runs: whether one of the layers is being traced.
    """

    def __init__(self, model: keras.Model, replicas: Replicas) -> None:
        self._replicas = replicas
        own = {id(layer): layer for layer in (*layers_by_replica(model), *_drawing_layers(model))}
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
