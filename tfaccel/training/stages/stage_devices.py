"""Operations on a stage's device: those of a stage, forward and backward, and those that follow their inputs.

With one tape for the whole model, the operations of the backward pass have no device of their own, and all run on the
default one (https://github.com/tensorflow/tensorflow/issues/33688). So each stage has a tape of its own, whose gradient
is taken on the stage's device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfaccel.training.private.private_graph import like


def run_on(device: str, function: Callable[..., list[Any]], inputs: Sequence[tf.Tensor]) -> list[Any]:
    """Calls a function on a device, and takes its gradient there, with a tape of its own.

    Args:
        device: the device.
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
