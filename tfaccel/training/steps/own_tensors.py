"""Keeps the tensors that a replica stores in layers separate while it waits for the other replicas.

`MirroredStrategy` traces each replica in a thread, and switches to the next one whenever a replica waits for all of
them. The layers are the same Python objects in all threads, so tensors that a replica stored in them before waiting,
such as added losses, would otherwise be replaced by another replica's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private.private_api import all_layers
from tfaccel.training.private.private_losses import merge_calls

_MISSING = object()


@contextlib.contextmanager
def own_tensors(model: keras.Model) -> Iterator[None]:
    """While tracing several replicas: saves the layers' tensors where a replica waits, and restores them after."""

    def wait(merge: Callable[[], Any]) -> Any:
        kept = [(layer, _attributes(layer)) for layer in all_layers(model)]
        result = merge()
        for layer, attributes in kept:
            _put_back(layer, attributes)
        return result

    with merge_calls(wait):
        yield


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
