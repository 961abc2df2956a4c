"""Marks the operations of each layer by a name scope, so that they can be told apart in a graph or a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfaccel.costs.graph_costs import layer_scope
from tfaccel.training.private import private_api
from tfaccel.training.steps.model_parts import get_optimizers, stepping_optimizers
from tfaccel.training.steps.overrides import instance_attributes


def layer_names(model: keras.Model) -> dict[int, str]:
    """The number of each layer's name scope, and the layer's path in the model, without the model's own name."""
    layers = enumerate(private_api.all_layers(model))
    return {number: (layer.path or layer.name).removeprefix(f"{model.name}/") for number, layer in layers}


def optimizer_names(model: keras.Model) -> tuple[str, ...]:
    """The names of a model's optimizers, which open name scopes of that name."""
    optimizers = get_optimizers(model).values() if model.compiled else ()
    return tuple({one.name for outer in optimizers for one in (outer, *stepping_optimizers(outer))})


@contextlib.contextmanager
def layers_marked(model: keras.Model) -> Iterator[None]:
    """While tracing: each layer's `call`, or the kernel in its place, opens the name scope of its number."""
    with contextlib.ExitStack() as stack:
        for number, layer in enumerate(private_api.all_layers(model)):
            if layer is not model:
                stack.enter_context(instance_attributes(layer, {"call": _marked(layer.call, layer_scope(number))}))
        yield


def _marked(call: Any, scope: str) -> Any:
    def marked(*args: Any, **kwargs: Any) -> Any:
        with tf.name_scope(scope):
            return call(*args, **kwargs)

    return marked
