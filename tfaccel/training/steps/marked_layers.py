"""Marks the operations of each layer by a name scope, so that a step's cost can be counted, and timed, by layer."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tfaccel.costs.graph_costs import graph_costs, layer_scope
from tfaccel.costs.model_cost import StepCost
from tfaccel.data.feeds import IteratorBatches
from tfaccel.training.private import private_api
from tfaccel.training.steps.model_parts import get_optimizers, stepping_optimizers
from tfaccel.training.steps.overrides import attributes_of_each
from tfaccel.training.steps.python_numbers import numbers_not_used_up

if TYPE_CHECKING:
    from tfaccel.training.steps.engine import Engine


def train_step_cost(engine: Engine, batch_spec: Any, *, rows: int, batches_per_step: int = 1) -> StepCost:
    """The cost of one training step of a compiled and built model, over all replicas, counted in Keras's operations.

    Nothing is trained, and random states are left as they are. Operations are counted before they are fused.

    Args:
        batches_per_step: micro-batches whose gradients are accumulated; only the last one updates the weights.
    """
    spec = with_rows(batch_spec, rows)
    batches = IteratorBatches()
    steps = engine.new_steps()
    graph = _traced(engine.model, lambda batch: steps.train(batches, batch), spec)
    cost = _counted(engine.model, graph)
    if batches_per_step > 1:
        cost += _counted(engine.model, graph, updates=False).repeated(batches_per_step - 1)
    return cost


def forward_cost(model: keras.Model, inputs_spec: Any, *, rows: int) -> StepCost:
    """The cost of a forward pass in inference mode of a built model.

    Raises:
        WorkloadError: if a shape or the length of a loop depends on the data.
    """
    graph = _traced(model, lambda inputs: model(inputs, training=False), with_rows(inputs_spec, rows))
    return _counted(model, graph)


def with_rows(batch_spec: Any, rows: int) -> Any:
    """The specs of a batch with this many rows."""
    return keras.tree.map_structure(
        lambda one: None if one is None else tf.TensorSpec([rows, *one.shape[1:]], one.dtype), batch_spec
    )


def _traced(model: keras.Model, function: Any, spec: Any) -> Any:
    with numbers_not_used_up(), layers_marked(model):
        return tf.function(function, autograph=False).get_concrete_function(spec).graph


def _counted(model: keras.Model, graph: Any, *, updates: bool = True) -> StepCost:
    return graph_costs(graph, layer_names(model), optimizers=optimizer_names(model), updates=updates)


def layer_names(model: keras.Model) -> dict[int, str]:
    """The number of each layer's name scope, and the layer's path in the model, without the model's own name."""
    layers = enumerate(private_api.all_layers(model))
    return {number: (layer.path or layer.name).removeprefix(f"{model.name}/") for number, layer in layers}


def optimizer_names(model: keras.Model) -> tuple[str, ...]:
    """The names of a model's optimizers, which open name scopes of that name."""
    optimizers = get_optimizers(model).values() if model.compiled else ()
    return tuple({one.name for outer in optimizers for one in (outer, *stepping_optimizers(outer))})


def layers_marked(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """While tracing: each layer's `call`, or the kernel in its place, opens the name scope of its number."""
    numbers = enumerate(private_api.all_layers(model))
    return attributes_of_each(
        (layer, {"call": _marked(layer.call, layer_scope(number))}) for number, layer in numbers if layer is not model
    )


def _marked(call: Any, scope: str) -> Any:
    def marked(*args: Any, **kwargs: Any) -> Any:
        with tf.name_scope(scope):
            return call(*args, **kwargs)

    return marked
