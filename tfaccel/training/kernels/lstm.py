"""LSTM on the CPU: one matrix product for the inputs of all steps, a gradient in closed form, and the gradient of that.

Keras multiplies the inputs in each step, and differentiates the operations of each step one by one. TensorFlow's
`BlockLSTM`, which computes all steps in one operation, is slower than this loop: its products do not use the wide
vectors of newer CPUs, and its gradient multiplies for the kernels in each step.

Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, https://doi.org/10.1162/neco.1997.9.8.1735
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.kernels.recurrent import (
    before_each_step,
    differentiable_again,
    fused_recurrence,
    num_steps,
    unrolled_loop,
)

_SAVED = ("i", "cs", "f", "o", "ci", "co", "cs_prev", "h")


def fused_lstm(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make an `LSTM` use `lstm` where it can; {} for other layers."""

    def run(inputs: tf.Tensor, states: Sequence[tf.Tensor], weights: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        kernel, recurrent_kernel, *biases = weights
        bias = biases[0] if biases else tf.zeros(kernel.shape[-1:])
        in_order = [_in_kernel_order(one) for one in (kernel, recurrent_kernel, bias)]
        return lstm(inputs, states, in_order, all_steps=layer.return_sequences)

    return fused_recurrence(layer, keras.layers.LSTM, run)


def lstm(
    inputs: tf.Tensor, states: Sequence[tf.Tensor], weights: Sequence[tf.Tensor], *, all_steps: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Runs an LSTM with the activations sigmoid and tanh over sequences. All tensors are float32.

    Args:
        inputs: shape `(steps, batch, features)`, with at least one step.
        states: the hidden state and the cell state before the first step, each of shape `(batch, units)`.
        weights: kernel, recurrent kernel and bias; their `4 * units` columns are those of the input gate, the
            candidate, the forget gate and the output gate.
        all_steps: return the hidden states after all steps, not only after the last one.

    Returns:
        The hidden states, of shape `(steps, batch, units)` or `(batch, units)`, and the last cell state.

    Example:
        >>> weights = [tf.ones([3, 8]), tf.ones([2, 8]), tf.zeros([8])]
        >>> hidden, _ = lstm(tf.zeros([5, 4, 3]), [tf.zeros([4, 2])] * 2, weights, all_steps=True)
        >>> hidden.shape.as_list(), float(tf.reduce_max(tf.abs(hidden)))
        ([5, 4, 2], 0.0)
    """

    @tf.custom_gradient
    def computed(*arguments: tf.Tensor) -> tuple[Any, Any]:
        inputs, *_, kernel, _, bias = arguments
        steps, last_hidden, last_cell = _all_steps(arguments)
        hiddens = steps.pop("h").stack()

        def gradients(*upstream: tf.Tensor) -> list[tf.Tensor]:
            of_gates, of_recurrent_kernel, *of_states = gate_gradients(arguments, steps, hiddens, upstream)
            of_gates = tf.reshape(of_gates, [-1, bias.shape[0]])
            of_inputs = tf.reshape(tf.matmul(of_gates, kernel, transpose_b=True), tf.shape(inputs))
            of_kernel = tf.matmul(tf.reshape(inputs, [-1, kernel.shape[0]]), of_gates, transpose_a=True)
            of_bias = tf.raw_ops.BiasAddGrad(out_backprop=of_gates)
            return [of_inputs, *of_states, of_kernel, of_recurrent_kernel, of_bias]

        return (hiddens if all_steps else last_hidden, last_cell), gradients

    return computed(inputs, *states, *weights)


def _all_steps(arguments: Sequence[tf.Tensor]) -> tuple[dict[str, tf.TensorArray], tf.Tensor, tf.Tensor]:
    """The values of each step that its gradient needs, and the last states.

    They are named as in `tf.raw_ops.LSTMBlockCellGrad`: the gates i, f and o, the candidate ci, the cell state cs, the
    one before, and its tanh co.
    """
    inputs, hidden, cell, kernel, recurrent_kernel, bias = arguments
    length, units = num_steps(inputs), hidden.shape[-1]
    projected = tf.matmul(tf.reshape(inputs, [-1, kernel.shape[0]]), kernel) + bias
    projected = tf.reshape(projected, [length, -1, 4 * units])

    def one_step(step: Any, arrays: dict[str, tf.TensorArray], hidden: tf.Tensor, before: tf.Tensor) -> Any:
        gates = projected[step] + tf.matmul(hidden, recurrent_kernel)
        entry, candidate, others = tf.split(gates, [units, units, 2 * units], -1)
        entry, candidate = tf.sigmoid(entry), tf.tanh(candidate)
        forget, output = tf.split(tf.sigmoid(others), 2, -1)
        cell = forget * before + entry * candidate
        bounded = tf.tanh(cell)
        hidden = output * bounded
        values = (entry, cell, forget, output, candidate, bounded, before, hidden)
        arrays = {name: arrays[name].write(step, value) for name, value in zip(_SAVED, values, strict=True)}
        return step + 1, arrays, hidden, cell

    array = tf.TensorArray(tf.float32, length, element_shape=hidden.shape, clear_after_read=False)
    start = (tf.constant(0), dict.fromkeys(_SAVED, array), hidden, cell)
    _, arrays, *states = unrolled_loop(one_step, start, length)
    return arrays, *states


def _in_kernel_order(weight: tf.Tensor) -> tf.Tensor:
    """A weight of Keras's with the columns of candidate and forget gate swapped."""
    entry, forget, candidate, output = tf.split(weight, 4, -1)
    return tf.concat([entry, candidate, forget, output], -1)


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
