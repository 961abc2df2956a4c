"""LSTM on the CPU: one matrix product for the inputs of all steps, and a gradient in closed form.

Keras multiplies the inputs in each step, and differentiates the operations of each step one by one. TensorFlow's
`BlockLSTM`, which computes all steps in one operation, is slower than this loop: its products do not use the wide
vectors of newer CPUs, and its gradient multiplies for the kernels in each step.

Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, https://doi.org/10.1162/neco.1997.9.8.1735
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.kernels.lstm_gradients import gate_gradients
from tfaccel.training.kernels.recurrent import fused_recurrence, num_steps, unrolled_loop

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
