"""Where a model is cut into stages: between operations, where one tensor crosses; even in memory, then in operations.

The largest stage's share of weights and slots is the least possible, or within 20 % of an equal share. Of the ways to
cut that allow it, the one is taken whose largest stage computes least.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.training.private import private_api
from tfaccel.training.private.private_api import get_graph, get_nodes, name_of_maker
from tfaccel.training.private.private_slots import get_every_slot
from tfaccel.training.steps.marked_layers import forward_cost
from tfaccel.training.steps.model_parts import (
    has_own_logs,
    has_own_test_step,
    has_own_train_step,
    stepping_optimizers,
)

FAIR = 1.2  # times an equal share
_ONE_STAGE = "or use pipeline_stages=1"


@dataclass(frozen=True)
class CutStage:
    """One stage of a graph.

    Attributes:
        nodes: its operations, in the order in which they run.
        inputs: the symbolic tensors that it takes from stages before it and from the model's inputs.
        outputs: the symbolic tensors that later stages or the model's caller take.
        num_bytes: of its weights and their slots.
        flops: of its matrix products and convolutions, for one example, forward.
    """

    nodes: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    num_bytes: int
    flops: int

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """Every layer, inner ones too."""
        outer = [node.operation for node in self.nodes if isinstance(node.operation, keras.layers.Layer)]
        return list({id(one): one for layer in outer for one in private_api.all_layers(layer)}.values())


def check_model(model: keras.Model, num_stages: int) -> None:
    """Raises PlanError for a model whose steps cannot be run in stages."""
    what = None
    if has_own_train_step(model) or has_own_test_step(model):
        what = "a train_step or test_step of its own, which may call parts of the model"
    elif has_own_logs(model, "train") or has_own_logs(model, "test"):
        what = "compute_metrics or get_metrics_result of its own"
    elif model.run_eagerly:
        what = "run_eagerly=True, and operations are placed in graphs"
    elif model.jit_compile:
        what = "jit_compile=True, and XLA compiles the operations of one device"
    elif any(getattr(one, "overwrite_with_gradient", False) for one in model.trainable_variables):
        what = "variables that take the value of their gradient, as the scales of float8 do: micro-batches add them up"
    if what is not None:
        raise PlanError(
            f"pipeline_stages={num_stages} runs Keras's own steps in stages. Received: model {model.name!r} of "
            f"{type(model).__name__}, which has {what}. Change that, {_ONE_STAGE}."
        )
    optimizer = getattr(model, "optimizer", None)
    several = [] if optimizer is None else stepping_optimizers(optimizer)
    if len(several) > 1:
        raise PlanError(
            f"pipeline_stages={num_stages} trains with one optimizer. Received: a MultiOptimizer of {len(several)}. "
            "Use one optimizer, or pipeline_stages=1."
        )


def cut_model(model: keras.Model, num_stages: int) -> list[CutStage]:
    """Cuts a built model into stages.

    Raises:
        PlanError: if it cannot be cut into that many; the message names the layer that prevents it.
    """
    graph = get_graph(model)
    if graph is None:
        raise PlanError(
            f"pipeline_stages={num_stages} cuts functional and sequential models between their layers. Received: model "
            f"{model.name!r} of {type(model).__name__}, which is a subclassed model, or is called on nested inputs. "
            f"Build it with the functional API, {_ONE_STAGE}."
        )
    nodes = get_nodes(graph)
    if len(nodes) < num_stages:
        raise PlanError(
            f"Model {model.name!r} has fewer layers than stages. Received: pipeline_stages={num_stages}, "
            f"{len(nodes)} layers. Use at most {len(nodes)} stages."
        )
    obstacles = [_obstacle(graph, nodes, place) for place in range(1, len(nodes))]
    places = [place for place, obstacle in enumerate(obstacles, 1) if obstacle is None]
    if len(places) + 1 < num_stages:
        why = next(obstacle for obstacle in obstacles if obstacle is not None)
        raise PlanError(
            f"Model {model.name!r} can be cut into at most {len(places) + 1} stages, at operations where one tensor "
            f"crosses. Received: pipeline_stages={num_stages}. {why}. Change the model there, use fewer stages, "
            f"{_ONE_STAGE}."
        )
    # Before an operation with weights, TensorFlow's graph optimizer merges no constant factors over the cut.
    before_weights = [place for place in places if getattr(nodes[place].operation, "trainable_variables", ())]
    places = before_weights if len(before_weights) + 1 >= num_stages else places
    num_bytes = [_count_bytes(model, node) for node in nodes]
    flops = _count_flops(model, graph, nodes)
    bounds = [0, *_balanced(places, num_bytes, flops, num_stages), len(nodes)]
    return [_stage(graph, nodes, slice(*ends), num_bytes, flops) for ends in itertools.pairwise(bounds)]


def _obstacle(graph: Any, nodes: Sequence[Any], place: int) -> str | None:
    """Why the graph cannot be cut before the node at `place`; None if it can."""
    before, after = nodes[:place], nodes[place:]
    crossing = _crossing(graph, before, after)
    name = before[-1].operation.name
    if len(crossing) != 1:
        makers = ", ".join(repr(name_of_maker(symbol)) for symbol in crossing[:4])
        return f"After layer {name!r}, {len(crossing)} tensors cross: those of {makers}"
    shared = _get_variables(before).keys() & _get_variables(after).keys()
    if shared:
        users = [node.operation.name for node in after if shared & _get_variables([node]).keys()]
        return f"After layer {name!r}, layer {users[0]!r} has weights that layers before it use as well"
    return None


def _crossing(graph: Any, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    made = {id(symbol): symbol for node in before for symbol in node.outputs}
    used = {id(symbol) for node in after for symbol in node.input_tensors} | {id(symbol) for symbol in graph.outputs}
    return [symbol for key, symbol in made.items() if key in used]


def _get_variables(nodes: Sequence[Any]) -> dict[int, keras.Variable]:
    found = [variable for node in nodes for variable in getattr(node.operation, "variables", ())]
    return {id(variable): variable for variable in found}


def _stage(graph: Any, nodes: Sequence[Any], part: slice, num_bytes: Sequence[int], flops: Sequence[int]) -> CutStage:
    before, own, after = nodes[: part.start], nodes[part], nodes[part.stop :]
    used = {id(symbol) for node in own for symbol in node.input_tensors}
    made = [*graph.inputs, *(symbol for node in before for symbol in node.outputs)]
    inputs = {id(symbol): symbol for symbol in made if id(symbol) in used}
    outputs = _crossing(graph, own, after)
    return CutStage(tuple(own), tuple(inputs.values()), tuple(outputs), sum(num_bytes[part]), sum(flops[part]))


def _count_bytes(model: keras.Model, node: Any) -> int:
    """Bytes of the weights of an operation, and of what the optimizer keeps for them."""
    optimizer = getattr(model, "optimizer", None)
    optimizers = [] if optimizer is None else [one for one in stepping_optimizers(optimizer) if one.built]
    found: dict[int, keras.Variable] = {}
    for variable in _get_variables([node]).values():
        slots = [slot for one in optimizers for slot in get_every_slot(one, variable)]
        found |= {id(one): one for one in (variable, *slots)}
    return sum(math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in found.values())


def _count_flops(model: keras.Model, graph: Any, nodes: Sequence[Any]) -> list[int]:
    """Operations of each node in a forward pass; zeros if the model takes no inputs whose None dimensions are 16."""
    num_rows = next((one.shape[0] for one in graph.inputs if one.shape[0]), 1)  # fixed in stateful models
    inputs = [keras.KerasTensor([1, *(size or 16 for size in one.shape[1:])], one.dtype) for one in graph.inputs]
    try:
        rows = forward_cost(model, keras.tree.pack_sequence_as(graph.input, inputs), rows=num_rows).rows
    except (WorkloadError, ValueError, TypeError, tf.errors.OpError):
        return [0] * len(nodes)
    by_name = {row.name: row.matrix_flops for row in rows}
    counted: set[str] = set()
    found = []
    for node in nodes:
        is_layer = isinstance(node.operation, keras.layers.Layer)
        names = {one.path or one.name for one in private_api.all_layers(node.operation)} if is_layer else set()
        found.append(sum(by_name.get(name, 0) for name in names - counted))
        counted |= names
    return found


def _balanced(places: Sequence[int], num_bytes: Sequence[int], flops: Sequence[int], num_stages: int) -> list[int]:
    """The places to cut at; see the top of this file."""
    even = FAIR * sum(num_bytes) / num_stages
    _, least = _least_largest(places, num_bytes, num_stages, lambda part: True)
    allowed = max(even, least)
    cuts, _ = _least_largest(places, flops, num_stages, lambda part: sum(num_bytes[part]) <= allowed)
    return cuts


def _least_largest(
    places: Sequence[int], costs: Sequence[int], num_stages: int, may_be: Callable[[slice], bool]
) -> tuple[list[int], float]:
    """The cuts that minimize the cost of the most expensive stage (ties: the most even), and that cost."""
    ends = [*places, len(costs)]
    best: dict[int, tuple[float, float, list[int]]] = {0: (0.0, 0.0, [])}  # by where the stages so far end
    for stage in range(num_stages):
        following: dict[int, tuple[float, float, list[int]]] = {}
        for end in ends if stage < num_stages - 1 else ends[-1:]:
            for start, (largest, squares, cuts) in best.items():
                part = slice(start, end)
                if start < end and may_be(part):
                    cost = sum(costs[part])
                    found = (max(largest, cost), squares + cost**2, [*cuts, end])
                    following[end] = min(following.get(end, found), found)
        best = following
    largest, _, cuts = best[len(costs)]
    return cuts[:-1], largest
