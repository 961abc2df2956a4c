"""What must hold while a step is traced: the model's state, the tensors of each replica, and what depends on the batch.

`MirroredStrategy` traces each replica in a thread, and switches to the next one whenever a replica waits for all of
them. The layers are the same Python objects in all threads, so tensors that a replica stored in them before waiting,
such as added losses, would be replaced by another replica's; `own_tensors` keeps them separate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_api
from tfaccel.training.private.private_api import all_layers
from tfaccel.training.private.private_layers import merge_calls
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.python_numbers import PythonNumbers

_MISSING = object()
_BATCH, _STATE = "batch", "state"


class TraceAgain(Exception):
    """While tracing: the step was traced before something that it depends on was known or built."""


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
        self._states: list[tuple[Any, TraceState, PythonNumbers]] = []
        self._numbers: PythonNumbers | None = None  # of the graph being traced

    @contextlib.contextmanager
    def tracing(self, specs: Any) -> Iterator[None]:
        """While tracing a graph for given specs: restores the model's state from when Keras would have traced it."""
        for known, state, numbers in self._states:
            if _is_covered(specs, known):
                with state.put_back(self._model), instance_attributes(self, {"_numbers": numbers}):
                    yield
                return
        numbers = PythonNumbers()
        with instance_attributes(self, {"_numbers": numbers}):
            yield
        for known, *_ in self._states:
            specs = _common(specs, known)
        self._states.append((specs, TraceState(self._model), numbers))  # tracing has built all layers

    def with_same_numbers(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step whose Python code draws the same numbers whenever it is traced; without a graph, new ones."""

        def traced(*args: Any) -> Any:
            with (PythonNumbers() if self._numbers is None else self._numbers).drawn_again():
                return step(*args)

        return traced


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


def own_tensors(model: keras.Model, check: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """While tracing several replicas: saves the layers' tensors where a replica waits, and restores them after.

    Args:
        check: called before a replica waits; may raise an error.
    """

    def wait(merge: Callable[[], Any]) -> Any:
        check()
        kept = [(layer, _attributes(layer)) for layer in all_layers(model)]
        result = merge()
        for layer, attributes in kept:
            _put_back(layer, attributes)
        return result

    return merge_calls(wait)


def _attributes(layer: keras.layers.Layer) -> dict[str, tuple[Any, Any]]:
    """Name -> the attribute, and a copy if it is a list or dict, which may change in place."""

    def copied(value: Any) -> Any:
        return list(value) if isinstance(value, list) else dict(value) if isinstance(value, dict) else None

    return {name: (value, copied(value)) for name, value in vars(layer).items()}


def _put_back(layer: keras.layers.Layer, attributes: dict[str, tuple[Any, Any]]) -> None:
    """Restores the attributes of a layer that have changed and that hold or held tensors."""
    for name in {*attributes, *vars(layer)}:
        was, contents = attributes.get(name, (_MISSING, None))
        now = vars(layer).get(name, _MISSING)
        if now is not was and (_has_tensors(now) or _has_tensors(was)):
            vars(layer)[name] = was
            if was is _MISSING:
                del vars(layer)[name]
        elif now is was and contents is not None and (_has_tensors(now) or _has_tensors(contents)):
            if isinstance(now, list):
                list.__setitem__(now, slice(None), contents)
            else:
                dict.clear(now)
                dict.update(now, contents)


def _has_tensors(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        return any(isinstance(one, tf.Tensor) for one in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, tf.Tensor)


def depends_on(tensor: Any, batch: Any) -> bool:
    """Whether a tensor is computed from the values of a batch.

    Returns:
        True if it is; always True in eager mode, which has no graph.
    """
    if tf.executing_eagerly():
        return True
    return any(name is _BATCH for name in _sources(tensor, batch))


def is_same_on_all_replicas(tensor: Any, batch: Any) -> bool:
    """Whether a tensor depends only on constants and on dimensions of the batch other than its number of rows.

    False if it depends on a variable: those of seed generators differ between replicas.
    """
    return not tf.executing_eagerly() and next(_sources(tensor, batch), None) is None


def _sources(tensor: Any, batch: Any) -> Iterator[str]:
    """Walks the graph backwards from a tensor; yields `_BATCH` or `_STATE` for each source but constants."""
    of_batch = {_key(leaf) for leaf in tf.nest.flatten(batch, expand_composites=True) if leaf is not None}
    seen: set[Any] = set()
    stack = list(tf.nest.flatten(tensor, expand_composites=True))
    while stack:
        one = stack.pop()
        if _key(one) in seen:
            continue
        seen.add(_key(one))
        if _key(one) in of_batch:
            yield _BATCH
        elif _is_eager(one):
            if one.dtype == tf.resource:
                yield _STATE
        elif one.op.type == "Placeholder":
            captured = [outer for outer, inner in one.graph.captures if inner is one]
            if not captured:
                yield _STATE
            stack += captured
        elif not _is_size_other_than_rows(one):
            if one.op.op_def.is_stateful:
                yield _STATE
            stack += one.op.inputs


def _key(tensor: Any) -> Any:
    return id(tensor) if _is_eager(tensor) else (id(tensor.graph), tensor.name)


def _is_eager(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and not tf.is_symbolic_tensor(value)


def _is_size_other_than_rows(tensor: tf.Tensor) -> bool:
    """Whether a tensor is `tf.shape(x)[axis]` with `axis > 0`."""
    operation = tensor.op
    if operation.type != "StridedSlice" or operation.inputs[0].op.type != "Shape":
        return False
    begin = tf.get_static_value(operation.inputs[1])
    return begin is not None and begin.size == 1 and int(begin[0]) > 0
