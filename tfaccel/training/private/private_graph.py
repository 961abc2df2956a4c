"""The private API of Keras's functional models that shows their operations, in the order in which a call runs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from tfaccel.tested_versions import private_part
from tfaccel.training.private.private_api import keras_mask, runs_its_layers, with_mask


def get_graph(model: keras.Model) -> Any:
    """The functional graph that a model's `call` runs; None if it runs something else, or is not built yet."""
    if not runs_its_layers(model):
        return None
    return private_part(model, "_functional") if isinstance(model, keras.Sequential) else model


def get_nodes(graph: Any) -> list[Any]:
    """The calls of operations in a graph, without its inputs, in the order in which they run."""
    by_depth = private_part(graph, "_nodes_by_depth")
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if not node.is_input]


def name_of_maker(symbol: Any) -> str:
    """The name of the operation that makes a symbolic tensor."""
    return str(private_part(symbol, "_keras_history").operation.name)


def values_of_inputs(graph: Any, inputs: Any, mask: Any) -> dict[int, Any]:
    """The values of a graph's symbolic inputs, by their ids, as `Functional.call` prepares them."""
    values = private_part(graph, "_standardize_inputs")(inputs)
    masks = [None] * len(values) if mask is None else keras.tree.flatten(mask)
    for value, own in zip(values, masks, strict=False):
        if own is not None:
            with_mask(value, own)
    return {id(symbol): value for symbol, value in zip(graph.inputs, values, strict=True)}


def run_nodes(nodes: Iterable[Any], values: dict[int, Any], context: dict[str, Any]) -> None:
    """Runs calls of operations as `Functional.call` does, and adds their outputs to `values`.

    Args:
        nodes: in their order.
        values: by the ids of symbolic tensors.
        context: what the model's call was given for its layers, such as `training`.
    """
    from keras.src.models import functional

    with_context = private_part(functional, "operation_fn")
    for node in nodes:
        if any(id(symbol) not in values for symbol in node.input_tensors):
            continue
        args, named = node.arguments.fill_in(values)
        outputs = with_context(node.operation, **context)(*args, **named)
        for symbol, value in zip(node.outputs, keras.tree.flatten(outputs), strict=False):
            values[id(symbol)] = value


def outputs_from(graph: Any, values: dict[int, Any]) -> Any:
    """What `Functional.call` returns, from the values of the graph's outputs."""
    structure = private_part(graph, "_outputs_struct")
    outputs = keras.tree.pack_sequence_as(structure, [values[id(symbol)] for symbol in graph.outputs])
    return outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs


def like(value: Any, tensor: Any) -> Any:
    """The tensor, with the mask of a value."""
    mask = keras_mask(value)
    return tensor if mask is None else with_mask(tensor, mask)


def replace_losses(layer: keras.layers.Layer, losses: list[Any]) -> None:
    """Replaces the losses that a layer added in the current call."""
    private_part(layer, "_losses")[:] = losses


def regularizer_attribute(variable: keras.Variable, regularizer: Any) -> dict[str, Any]:
    """The attribute that gives a variable another regularizer; the public one checks nothing, but is a property."""
    private_part(variable, "_regularizer")
    return {"_regularizer": regularizer}
