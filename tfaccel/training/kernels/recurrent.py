"""What the kernels of recurrent layers share: when a layer can use one, and derivatives of every order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_layers

_STEPS_TOGETHER = 4  # in one iteration of a loop

Run = Callable[[tf.Tensor, Sequence[tf.Tensor], Sequence[tf.Tensor]], Sequence[tf.Tensor]]


def fused_recurrence(layer: keras.layers.Layer, kind: type[keras.layers.RNN], run: Run) -> dict[str, Any]:
    """Attributes that make an RNN layer compute its steps with `run`, if all devices are CPUs; {} for other layers.

    Keras's operations compute masked sequences, and other dtypes than float32.

    Args:
        layer: any layer.
        kind: `keras.layers.LSTM` or `keras.layers.GRU`.
        run: computes the steps from inputs of shape `(steps, batch, features)`, the initial states, and kernel,
            recurrent kernel and bias (absent if the layer has none). It returns the hidden states, those of all steps
            or the last one, as the layer does, and then the other states after the last step.
    """
    has_accelerators = any(device.device_type != "CPU" for device in tf.config.list_logical_devices())
    if has_accelerators or not private_layers.computes_as_keras(layer, kind):
        return {}
    keras_loop, cell = layer.inner_loop, layer.cell

    def inner_loop(sequences: Any, initial_state: Any, mask: Any, training: bool = False) -> Any:
        states = [tf.convert_to_tensor(state) for state in keras.tree.flatten(initial_state)]
        variables = [one for one in (cell.kernel, cell.recurrent_kernel, cell.bias) if one is not None]
        is_float32 = all(one.dtype == "float32" for one in (sequences, *states, *variables))
        if not is_float32 or any(part is not None for part in keras.tree.flatten(mask)):
            return keras_loop(sequences, initial_state, mask, training=training)
        if training and 0.0 < cell.dropout < 1.0:
            sequences = sequences * cell.get_dropout_mask(sequences[:, 0, :])[:, tf.newaxis]
        inputs = tf.transpose(sequences, [1, 0, 2])
        inputs = tf.reverse(inputs, [0]) if layer.go_backwards else inputs
        weights = [tf.convert_to_tensor(one) for one in variables]
        hidden, *others = _in_chains(run, inputs, states, weights)
        if not layer.return_sequences:
            return hidden, hidden[:, tf.newaxis], [hidden, *others]
        return hidden[-1], tf.transpose(hidden, [1, 0, 2]), [hidden[-1], *others]

    return {"inner_loop": inner_loop}


def _in_chains(
    run: Run, inputs: tf.Tensor, states: Sequence[tf.Tensor], weights: Sequence[tf.Tensor]
) -> Sequence[tf.Tensor]:
    """Runs the halves of a batch side by side, if TensorFlow may use two cores for them.

    A step's operations are too small for two cores, and each step waits for the one before.
    """
    if len(os.sched_getaffinity(0)) < 2 or tf.config.threading.get_inter_op_parallelism_threads() == 1:
        return run(inputs, states, weights)
    rows = tf.shape(inputs)[1]
    sizes = [rows // 2, rows - rows // 2]
    halves = zip(
        tf.split(inputs, sizes, 1, num=2), *(tf.split(state, sizes, 0, num=2) for state in states), strict=True
    )
    (hidden, *others), (more_hidden, *more_others) = (run(one, own_states, weights) for one, *own_states in halves)
    pairs = zip(others, more_others, strict=True)
    return [tf.concat([hidden, more_hidden], -2), *(tf.concat(pair, 0) for pair in pairs)]


def differentiable_again(
    values: Sequence[tf.Tensor], *, fast: Callable[..., Any], differentiable: Callable[..., Any]
) -> Sequence[tf.Tensor]:
    """Computes `fast(*values)`, whose gradients are those of `differentiable(*values)`, the same function.

    Example:
        >>> tensor = tf.constant(3.0)
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(tensor)
        ...     (square,) = differentiable_again([tensor], fast=lambda x: (x * x,), differentiable=lambda x: (x**2,))
        >>> float(tape.gradient(square, tensor))
        6.0
    """

    @tf.custom_gradient
    def computed(*values: tf.Tensor) -> tuple[Any, Any]:
        def gradients(*upstream: tf.Tensor) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(values)
                results = differentiable(*values)
            zero = tf.UnconnectedGradients.ZERO
            return tape.gradient(results, values, upstream, unconnected_gradients=zero)

        return fast(*values), gradients

    return computed(*values)


def num_steps(sequences: tf.Tensor) -> Any:
    """The number of steps of time-major sequences: a number if it is known while tracing, otherwise a tensor.

    Example:
        >>> num_steps(tf.ones([5, 2, 3]))
        5
    """
    return tf.shape(sequences)[0] if sequences.shape[0] is None else sequences.shape[0]


def unrolled_loop(one_step: Callable[..., Any], start: tuple[Any, ...], length: Any) -> tuple[Any, ...]:
    """Calls `one_step` so many times, on what it returned before; several calls in each iteration of a loop.

    An iteration's own time is not small beside that of a step.

    Args:
        one_step: takes and returns a number, which it increments, and any further values.
        start: its first arguments; the number is 0.
        length: how often, as `num_steps` returns it.

    Example:
        >>> unrolled_loop(lambda done, x: (done + 1, 2 * x), (tf.constant(0), tf.constant(1)), 6)[1].numpy()
        64
    """
    together = _STEPS_TOGETHER if isinstance(length, int) else 1
    whole = length - length % together

    def body(*values: Any) -> Any:
        for _ in range(together):
            values = one_step(*values)
        return values

    values = tf.while_loop(lambda done, *_: done < whole, body, start, maximum_iterations=whole)
    for _ in range(length % together if together > 1 else 0):
        values = one_step(*values)
    return tuple(values)


def before_each_step(first: tf.Tensor, states: tf.Tensor) -> tf.Tensor:
    """The states before each step, from the initial state and the states after each step.

    Example:
        >>> before_each_step(tf.constant([1]), tf.constant([[2], [3], [4]])).numpy().ravel().tolist()
        [1, 2, 3]
    """
    return tf.concat([first[tf.newaxis], states[:-1]], 0)
