"""The state that a graph captures when it is traced: which weights are trainable, and the optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_api
from tfaccel.training.steps.overrides import instance_attributes


class TraceState:
    """The current `trainable` flags of a model's layers and weights, and its optimizer.

    As in Keras, changing them takes effect once the model is compiled again.
    """

    def __init__(self, model: keras.Model) -> None:
        self._layers = [(layer, layer.trainable) for layer in private_api.all_layers(model)]
        self._variables = [(variable, variable.trainable) for variable in model.variables]
        self._optimizer = getattr(model, "optimizer", None)

    @contextlib.contextmanager
    def put_back(self, model: keras.Model) -> Iterator[None]:
        """Temporarily restores this state of the model."""
        now = TraceState(model)
        others = {} if now._optimizer is self._optimizer else {"optimizer": self._optimizer}
        try:
            self._set()
            with instance_attributes(model, others):
                yield
        finally:
            now._set()

    def _set(self) -> None:
        if any(one.trainable != trainable for one, trainable in [*self._layers, *self._variables]):
            for one, trainable in [*self._layers, *self._variables]:  # outer layers first: they also set inner ones
                one.trainable = trainable


class TraceStates:
    """The model states in which graphs of one kind ("train", "test" or "predict") were first traced.

    Keras traces once for batches of given specs (`tf.function` decides), tfaccel several times. A later graph for such
    batches must not depend on how the model has changed in between.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._states: list[tuple[Any, TraceState]] = []

    @contextlib.contextmanager
    def tracing(self, specs: Any) -> Iterator[None]:
        """While tracing a graph for given specs: restores the model's state from when Keras would have traced it."""
        for known, state in self._states:
            if _is_covered(specs, known):
                with state.put_back(self._model):
                    yield
                return
        yield
        for known, _ in self._states:
            specs = _common(specs, known)
        self._states.append((specs, TraceState(self._model)))  # tracing has built all layers


def _is_covered(specs: Any, known: Any) -> bool:
    """Whether a graph for batches with specs `known` accepts batches with `specs`."""
    if _structure(specs) != _structure(known):
        return False
    pairs = zip(tf.nest.flatten(specs), tf.nest.flatten(known), strict=True)
    return all(one is other if one is None else one.is_subtype_of(other) for one, other in pairs)


def _common(specs: Any, known: Any) -> Any:
    """Specs that cover both, for which `tf.function` would trace the second time; `specs` if there are none."""
    if _structure(specs) != _structure(known):
        return specs
    pairs = zip(tf.nest.flatten(specs), tf.nest.flatten(known), strict=True)
    leaves = [one if one is None else one.most_specific_common_supertype([other]) for one, other in pairs]
    found = [leaf is None for leaf in leaves] == [leaf is None for leaf in tf.nest.flatten(specs)]
    return tf.nest.pack_sequence_as(specs, leaves) if found else specs


def _structure(specs: Any) -> Any:
    """The nest with every spec replaced by None, and None by True."""
    return tf.nest.map_structure(lambda spec: True if spec is None else None, specs)
