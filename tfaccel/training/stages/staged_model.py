"""A model whose stages run on devices of their own: its call, forward and backward, and where its variables are.

With one tape for the whole model, the operations of the backward pass have no device of their own, and all run on the
default one (https://github.com/tensorflow/tensorflow/issues/33688). So each stage has a tape of its own, whose gradient
is taken on the stage's device. Operations outside of stages follow their inputs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_api
from tfaccel.training.private.private_api import like
from tfaccel.training.private.private_slots import get_every_slot, move
from tfaccel.training.stages.cut import CutStage, check_model, cut_model
from tfaccel.training.steps.model_parts import (
    stepping_optimizers,
    untracked_variables,
)
from tfaccel.training.steps.overrides import instance_attributes
from tfaccel.training.steps.replicas import current_replica

logger = logging.getLogger("tfaccel")


class StagedModel:
    """The stages of a built model, and their devices.

    Args:
        devices: of each replica, those of its stages: replica by replica.

    Raises:
        PlanError: if the model cannot be cut, or does what stages do not support; the message says what can be done.
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
        optimizer = getattr(self.model, "optimizer", None)
        optimizers = [] if optimizer is None else [one for one in stepping_optimizers(optimizer) if one.built]
        states = untracked_variables(self.model)
        for stage, devices in zip(self.stages, self.devices, strict=True):
            for variable in _get_variables(stage, states):
                for slot in [slot for one in optimizers for slot in get_every_slot(one, variable)]:
                    move(slot, devices)
                move(variable, devices)

    def get_stage(self, variable: keras.Variable) -> int:
        """The stage of a weight, by number."""
        held = [{id(one) for one in _get_variables(stage, ())} for stage in self.stages]
        return next((number for number, ids in enumerate(held) if id(variable) in ids), len(self.stages) - 1)

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

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """While tracing: operations run where their inputs are."""
        with tf.compat.v1.device(following()):
            yield

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
        layers, num_before = stage.layers, []
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


@contextlib.contextmanager
def built_on_host(num_stages: int) -> Iterator[None]:
    """While building a model: a model that is cut into stages is built in the host's memory.

    Under `MirroredStrategy`, variables are made on the replicas' devices all the same.
    """
    with tf.device("/device:CPU:0") if num_stages > 1 else contextlib.nullcontext():
        yield


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
