"""A function whose activations are computed again for its gradient, instead of being stored.

`tf.recompute_grad` does the same, but returns other gradients than the function itself: zeros for a variable that none
flows to, so that weight decay changes it, and a dense tensor for rows of a table, whose optimizer step is another one.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, https://arxiv.org/abs/1604.06174
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfaccel.training.private import private_api
from tfaccel.training.private.private_tensorflow import without_recording


def recomputed(function: Callable[..., Any], inputs: Sequence[tf.Tensor]) -> Any:
    """Calls a function that runs once more for its gradient: only its inputs are stored for the backward pass.

    Gradients with respect to the inputs and the variables that the function reads are those of a plain call: None where
    there is none, and `tf.IndexedSlices` for rows of a variable.

    Args:
        function: takes the inputs and returns a tensor or a nest of tensors and Nones; the second run must repeat the
            first one.
        inputs: tensors.

    Returns:
        What the function returns, with Keras's masks.

    Example:
        >>> x, table = tf.constant([2.0]), tf.Variable([[1.0], [3.0]])
        >>> with tf.GradientTape() as tape:
        ...     y = recomputed(lambda x: x * tf.gather(table, [1]), [x])
        >>> tape.gradient(y, table).indices.numpy().tolist()
        [1]
    """
    returned: list[Any] = []

    @tf.custom_gradient
    def run(*tensors: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
        with without_recording() if tf.executing_eagerly() else contextlib.nullcontext():
            returned.append(function(*tensors))

        def gradients(*upstream: tf.Tensor, variables: Sequence[tf.Variable] = ()) -> Any:
            with tf.GradientTape() as tape:
                late = _after(upstream[0], tensors)
                tape.watch([tensor for tensor in late if tensor.dtype.is_floating])
                again = _tensors(function(*late))
            pairs = [pair for pair in zip(again, upstream, strict=True) if pair[0].dtype.is_floating]
            targets, given = [target for target, _ in pairs], [gradient for _, gradient in pairs]
            found = tape.gradient(targets, [*late, *variables], output_gradients=given)
            of_inputs = [None if one is None else tf.convert_to_tensor(one) for one in found[: len(late)]]
            return (of_inputs, found[len(late) :]) if variables else of_inputs

        return _tensors(returned[0]), gradients

    tensors = iter(run(*inputs))
    leaves = [None if leaf is None else _like(leaf, next(tensors)) for leaf in tf.nest.flatten(returned[0])]
    return tf.nest.pack_sequence_as(returned[0], leaves)


def _tensors(outputs: Any) -> list[tf.Tensor]:
    return [leaf for leaf in tf.nest.flatten(outputs) if leaf is not None]


def _like(output: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """The tensor, with the mask of the output whose values it has."""
    mask = private_api.keras_mask(output)
    return tensor if mask is None else private_api.with_mask(tensor, mask)


def _after(upstream: tf.Tensor, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The same values, which depend on `upstream`: compilers neither compute them earlier nor reuse the first run's."""
    first = tf.reshape(upstream, [-1])[:1]
    never = tf.reduce_any(tf.math.is_nan(first) & tf.math.is_inf(first))
    is_number = [tensor.dtype.is_floating or tensor.dtype.is_integer for tensor in tensors]
    return [
        tensor + tf.cast(never, tensor.dtype) if number else tensor
        for tensor, number in zip(tensors, is_number, strict=True)
    ]
