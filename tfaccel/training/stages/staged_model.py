"""A model in stages: where it is cut, and its call, forward and backward, with each stage on a device of its own.

It is cut between operations, where one tensor crosses. The largest stage's share of weights and slots is the least
possible, or within 20 % of an equal share. Of the ways to cut that allow it, the one is taken whose largest stage
computes least.

With one tape for the whole model, the operations of the backward pass have no device of their own, and all run on the
default one (https://github.com/tensorflow/tensorflow/issues/33688). So each stage has a tape of its own, whose gradient
is taken on the stage's device. Operations outside of stages follow their inputs.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfaccel.errors import PlanError, WorkloadError
from tfaccel.training.private import private_api
from tfaccel.training.private.private_api import get_graph, get_nodes, like, name_of_maker
from tfaccel.training.private.private_slots import get_every_slot, move
from tfaccel.training.steps.marked_layers import forward_cost
from tfaccel.training.steps.model_parts import (
    has_own_logs,
    has_own_test_step,
    has_own_train_step,
    stepping_optimizers,
    untracked_variables,
)
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import current_replica

logger = logging.getLogger("tfaccel")

FAIR = 1.2  # times an equal share
_ONE_STAGE = "or use pipeline_stages=1"


class StagedModel:
    """The stages of a built model, and their devices.

    Args:
        devices: of each replica, those of its stages: replica by replica.
    """

    def __init__(self, model: keras.Model, devices: Sequence[str], num_stages: int) -> None:
        check_model(model, num_stages)
        self.model = model
        self.graph = private_api.get_graph(model)
        self.stages = cut_model(model, num_stages)
        self.devices = [[_name(device) for device in devices[stage::num_stages]] for stage in range(num_stages)]
        self._say()

    def place_variables(self) -> None:
        """Moves each stage's weights, states and slots to its device."""
        states = untracked_variables(self.model)
        for stage, devices in zip(self.stages, self.devices, strict=True):
            for variable in _with_slots(self.model, _get_variables(stage, states)):
                move(variable, devices)

    @contextlib.contextmanager
    def traced(self, model: keras.Model) -> Iterator[None]:
        """While tracing a step: the model's stages run on their devices, and the rest on the last one's."""
        with contextlib.ExitStack() as stack:
            steps = {name: self._on_last(getattr(model, name)) for name in ("train_step", "test_step", "predict_step")}
            stack.enter_context(instance_attributes(model, {"call": self.call, **steps}))
            for number, stage in enumerate(self.stages):
                for variable in _get_variables(stage, ()):
                    if variable.regularizer is not None:
                        regularizer = self._regularizer(number, variable.regularizer)
                        attribute = private_api.regularizer_attribute(variable, regularizer)
                        stack.enter_context(instance_attributes(variable, attribute))
            yield

    @contextlib.contextmanager
    def on_last(self) -> Iterator[None]:
        """While tracing: operations run where their inputs are, or else on the last stage's device."""
        with tf.device(self._device(-1)), tf.compat.v1.device(following()):
            yield

    def following(self) -> contextlib.AbstractContextManager[None]:
        """While tracing: operations run where their inputs are."""
        return tf.compat.v1.device(following())

    def call(self, inputs: Any, training: Any = None, mask: Any = None, **context: Any) -> Any:
        """The model's call, stage by stage."""
        values = private_api.values_of_inputs(self.graph, inputs, mask)
        for number, stage in enumerate(self.stages):
            self._run(number, stage, values, {"training": training, **context})
        return private_api.outputs_from(self.graph, values)

    def _run(self, number: int, stage: CutStage, values: dict[int, Any], context: dict[str, Any]) -> None:
        """Runs one stage, and adds its outputs to `values`."""
        device, of_model = self._device(number), {id(symbol) for symbol in self.graph.inputs}
        given = {id(symbol): values[id(symbol)] for symbol in stage.inputs}
        passed = [key for key, one in given.items() if key not in of_model and one is not None and has_gradient(one)]
        layers = stage.layers
        num_before = [len(private_api.losses_added_by(layer)) for layer in layers]

        def run(*tensors: tf.Tensor) -> list[Any]:
            own = {key: _moved(value) for key, value in given.items() if key not in passed}
            own |= zip(passed, tensors, strict=True)
            private_api.run_nodes(stage.nodes, own, context)
            added = [
                loss
                for layer, before in zip(layers, num_before, strict=True)
                for loss in private_api.losses_added_by(layer)[before:]
            ]
            return [*(own[id(symbol)] for symbol in stage.outputs), *map(tf.convert_to_tensor, added)]

        returned = run_on(device, run, [_with_moved_mask(values[key], device) for key in passed])
        for symbol, value in zip(stage.outputs, returned, strict=False):
            values[id(symbol)] = value
        losses = iter(returned[len(stage.outputs) :])
        for layer, before in zip(layers, num_before, strict=True):
            now = private_api.losses_added_by(layer)
            if len(now) > before:
                private_api.replace_losses(layer, [*now[:before], *(next(losses) for _ in now[before:])])

    def _on_last(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def on_last(data: Any) -> Any:
            with self.on_last():
                x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
                if y is None:
                    return step(data)
                y, weights = keras.tree.map_structure(_moved, (y, weights))
                return step(keras.utils.pack_x_y_sample_weight(x, y, weights))

        return on_last

    def _regularizer(self, number: int, regularizer: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda variable: run_on(self._device(number), lambda: [regularizer(variable)], [])[0]

    def _device(self, number: int) -> str:
        devices = self.devices[number]
        return devices[current_replica()] if len(devices) > 1 else devices[0]

    def _say(self) -> None:
        whole = sum(stage.num_bytes for stage in self.stages) or 1
        parts = [
            f"{stage.nodes[0].operation.name} to {stage.nodes[-1].operation.name} on {', '.join(devices)} "
            f"({100 * stage.num_bytes / whole:.0f} % of weights and slots)"
            for stage, devices in zip(self.stages, self.devices, strict=True)
        ]
        logger.info("The model runs in %d stages: %s.", len(self.stages), "; ".join(parts))


def built_on_host(num_stages: int) -> contextlib.AbstractContextManager[None]:
    """While building a model: a model that is cut into stages is built in the host's memory.

    Under `MirroredStrategy`, variables are made on the replicas' devices all the same.
    """
    return tf.device("/device:CPU:0") if num_stages > 1 else contextlib.nullcontext()


def staged_model(model: keras.Model, devices: Sequence[str], num_stages: int) -> StagedModel | None:
    """A model's stages, with its variables on their devices; None for one stage."""
    if num_stages == 1:
        return None
    staged = StagedModel(model, devices, num_stages)
    staged.place_variables()
    return staged


def _get_variables(stage: CutStage, states: Sequence[keras.Variable]) -> list[keras.Variable]:
    """A stage's weights and seeds, and those of the given states that its layers hold."""
    found = [variable for node in stage.nodes for variable in getattr(node.operation, "variables", ())]
    known = {id(state): state for state in states}
    for layer in stage.layers:
        held = (*keras.tree.flatten(getattr(layer, "states", None)), *vars(layer).values())
        found += [known[id(one)] for one in held if id(one) in known]
    return list({id(variable): variable for variable in found}.values())


def _with_slots(model: keras.Model, variables: Iterable[keras.Variable]) -> Iterator[keras.Variable]:
    """Variables, each after what the model's optimizers keep for it."""
    optimizer = getattr(model, "optimizer", None)
    optimizers = [] if optimizer is None else [one for one in stepping_optimizers(optimizer) if one.built]
    for variable in variables:
        for one in optimizers:
            yield from get_every_slot(one, variable)
        yield variable


def _moved(value: Any) -> Any:
    """A dense tensor on the current device; anything else as it is."""
    return private_api.like(value, tf.identity(value)) if isinstance(value, tf.Tensor) else value


def _with_moved_mask(value: Any, device: str) -> Any:
    """The tensor itself, with its mask on a device."""
    mask = private_api.keras_mask(value)
    if mask is None:
        return value
    with tf.device(device):
        return private_api.with_mask(tf.identity(value), tf.identity(mask))


def _name(device: str) -> str:
    """TensorFlow's name of a device."""
    return device if device.startswith("/") else f"/device:{device}"


def run_on(device: str, function: Callable[..., list[Any]], inputs: Sequence[tf.Tensor]) -> list[Any]:
    """Calls a function on a device, and takes its gradient there, with a tape of its own.

    Args:
        function: takes the inputs, and returns tensors and Nones.
        inputs: floating-point or complex tensors that gradients are passed on to.

    Returns:
        What the function returns, with Keras's masks. Gradients are those of a plain call.

    Example:
        >>> w = tf.Variable(3.0)
        >>> @tf.function
        ... def gradients(x):
        ...     with tf.GradientTape() as tape:
        ...         tape.watch(x)
        ...         (y,) = run_on("CPU:0", lambda x: [w * x], [x])
        ...     return tape.gradient(y, [x, w])
        >>> [float(one) for one in gradients(tf.constant(2.0))]
        [3.0, 2.0]
    """
    returned: list[Any] = []

    @tf.custom_gradient
    def run(*given: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
        moved = [like(tensor, tf.identity(one)) for tensor, one in zip(inputs, given, strict=True)]
        with tf.GradientTape() as tape:
            tape.watch(moved)
            returned.extend(function(*moved))
        outputs = [output for output in returned if output is not None]

        def gradients(*upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()) -> Any:
            pairs = [pair for pair in zip(outputs, upstream, strict=True) if has_gradient(pair[0])]
            with tf.device(device):
                found = tape.gradient(
                    [output for output, _ in pairs],
                    [*moved, *variables],
                    output_gradients=[tf.identity(gradient) for _, gradient in pairs],
                )
                of_inputs = [None if one is None else tf.convert_to_tensor(one) for one in found[: len(moved)]]
            return (of_inputs, found[len(moved) :]) if variables else of_inputs

        return outputs, gradients

    with tf.device(device):
        tensors = iter(run(*inputs))
    return [None if output is None else like(output, next(tensors)) for output in returned]


def has_gradient(tensor: Any) -> bool:
    """Whether gradients pass through a tensor: it has real or complex numbers."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def following() -> Callable[[tf.Operation], str]:
    """A device function: an operation without a device runs where its inputs are; empty if they are on several.

    Scalar inputs are ignored if a larger input has a device: a gradient is scaled where it is.
    """
    known: dict[int, tuple[Any, str]] = {}  # keeps the tensors alive, so that no id is reused

    def get_device(tensor: Any) -> str:
        if not tf.is_symbolic_tensor(tensor):
            return str(tensor.device or "")
        if id(tensor) not in known:
            known[id(tensor)] = tensor, _source_device(tensor, get_device)
        return known[id(tensor)][1]

    def follow_inputs(operation: tf.Operation) -> str:
        if operation.device:
            return str(operation.device)
        large: set[str] = set()
        small: set[str] = set()
        for tensor in operation.inputs:
            device = get_device(tensor)
            if device:
                (small if tensor.shape.rank == 0 and tensor.dtype != tf.resource else large).add(_short(device))
        found = large or small
        return found.pop() if len(found) == 1 else ""

    return follow_inputs


def _source_device(tensor: tf.Tensor, get_device: Callable[[Any], str]) -> str:
    """Where a tensor of a graph is: one that was captured is where it comes from, one read from a variable is there."""
    operation = tensor.op
    if operation.type == "Placeholder":
        outer = next((outer for outer, inner in getattr(tensor.graph, "captures", ()) if inner is tensor), None)
        return str(operation.device or "") if outer is None else get_device(outer)
    handles = [one for one in operation.inputs if one.dtype == tf.resource]
    if operation.device or not handles:
        return str(operation.device or "")
    return get_device(handles[0])


def _short(device: str) -> str:
    """A device's name without the machine, which not all operations name."""
    return device[device.rindex("/device:") :] if "/device:" in device else device


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
    """Cuts a built model into stages."""
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
    shared = _held_variables(before).keys() & _held_variables(after).keys()
    if shared:
        users = [node.operation.name for node in after if shared & _held_variables([node]).keys()]
        return f"After layer {name!r}, layer {users[0]!r} has weights that layers before it use as well"
    return None


def _crossing(graph: Any, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    made = {id(symbol): symbol for node in before for symbol in node.outputs}
    used = {id(symbol) for node in after for symbol in node.input_tensors} | {id(symbol) for symbol in graph.outputs}
    return [symbol for key, symbol in made.items() if key in used]


def _held_variables(nodes: Sequence[Any]) -> dict[int, keras.Variable]:
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
    found = {id(one): one for one in _with_slots(model, _held_variables([node]).values())}
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
