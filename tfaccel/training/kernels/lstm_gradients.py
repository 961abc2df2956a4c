"""The gradient of an LSTM's recurrence, in closed form, and the gradient of that gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfaccel.training.kernels.recurrent import before_each_step, differentiable_again, num_steps, unrolled_loop


def gate_gradients(
    arguments: Sequence[tf.Tensor],
    steps: Mapping[str, tf.TensorArray],
    hiddens: tf.Tensor,
    upstream: Sequence[tf.Tensor],
) -> Sequence[tf.Tensor]:
    """Gradients with respect to the gates before their activations, the recurrent kernel and the initial states.

    Args:
        arguments: inputs, initial hidden state and cell state, kernel, recurrent kernel and bias, as in `lstm`.
        steps: the values of each step, by their names in `tf.raw_ops.LSTMBlockCellGrad`.
        hiddens: the hidden states after all steps.
        upstream: gradients with respect to the hidden states, of all steps or of the last one, and the last cell state.

    Returns:
        Gradients of shape `(steps, batch, 4 * units)`, `(units, 4 * units)` and twice `(batch, units)`.
    """

    return differentiable_again(
        (*arguments, *upstream),
        fast=lambda *values: _in_closed_form(values[:6], steps, hiddens, values[6:]),
        differentiable=lambda *values: _by_automatic_differentiation(values[:6], values[6:]),
    )


def _in_closed_form(
    arguments: Sequence[tf.Tensor],
    steps: Mapping[str, tf.TensorArray],
    hiddens: tf.Tensor,
    upstream: Sequence[tf.Tensor],
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    inputs, hidden, _, _, recurrent_kernel, bias = arguments
    of_hidden, of_cell = upstream
    of_all_steps = len(of_hidden.shape) == 3
    peephole, transposed = tf.zeros_like(bias[: hidden.shape[-1]]), tf.transpose(recurrent_kernel)
    shapes = {"x": hidden[:, :0], "h_prev": hidden, "w": recurrent_kernel, "b": bias}  # their values are not used
    fixed = {**shapes, "wci": peephole, "wcf": peephole, "wco": peephole, "use_peephole": False}

    def one_step(done: Any, of_gates: tf.TensorArray, of_hidden_after: tf.Tensor, of_cell: tf.Tensor) -> Any:
        step = length - 1 - done
        gradient = tf.raw_ops.LSTMBlockCellGrad(
            **{name: array.read(step) for name, array in steps.items()},
            **fixed,
            h_grad=of_hidden_after + of_hidden[step] if of_all_steps else of_hidden_after,
            cs_grad=of_cell,
        )
        of_hidden_before = tf.matmul(gradient.dicfo, transposed)
        return done + 1, of_gates.write(step, gradient.dicfo), of_hidden_before, gradient.cs_prev_grad

    length = num_steps(inputs)
    of_gates = tf.TensorArray(tf.float32, length, element_shape=[hidden.shape[0], *bias.shape])
    start = (tf.constant(0), of_gates, tf.zeros_like(hidden) if of_all_steps else of_hidden, of_cell)
    _, of_gates, *of_states = unrolled_loop(one_step, start, length)
    of_gates = of_gates.stack()
    before = tf.reshape(before_each_step(hidden, hiddens), [-1, hidden.shape[-1]])
    of_recurrent_kernel = tf.matmul(before, tf.reshape(of_gates, [-1, bias.shape[0]]), transpose_a=True)
    return (of_gates, of_recurrent_kernel, *of_states)


def _by_automatic_differentiation(arguments: Sequence[tf.Tensor], upstream: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The same gradients from a loop of operations that TensorFlow can differentiate again."""
    inputs, hidden, cell, kernel, recurrent_kernel, bias = arguments
    sources = [tf.matmul(inputs, kernel) + bias, recurrent_kernel, hidden, cell]
    length = num_steps(inputs)
    with tf.GradientTape() as tape:
        tape.watch(sources)
        projected = sources[0]

        def body(step: tf.Tensor, outputs: tf.TensorArray, hidden: tf.Tensor, cell: tf.Tensor) -> Any:
            entry, candidate, forget, output = tf.split(projected[step] + tf.matmul(hidden, recurrent_kernel), 4, -1)
            cell = tf.sigmoid(forget) * cell + tf.sigmoid(entry) * tf.tanh(candidate)
            hidden = tf.sigmoid(output) * tf.tanh(cell)
            return step + 1, outputs.write(step, hidden), hidden, cell

        start = (tf.constant(0), tf.TensorArray(tf.float32, length, element_shape=hidden.shape), hidden, cell)
        loop = tf.while_loop(lambda step, *_: step < length, body, start, maximum_iterations=length)
        _, outputs, last_hidden, last_cell = loop
        results = [outputs.stack() if len(upstream[0].shape) == 3 else last_hidden, last_cell]
    return tape.gradient(results, sources, upstream)
