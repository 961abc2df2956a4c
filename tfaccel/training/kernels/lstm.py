"""LSTM on the CPU by TensorFlow's kernel for whole sequences, with a gradient in closed form.

Keras loops over the steps with many small operations in each. TensorFlow's `BlockLSTM` computes all steps in one
operation. It serves here without its own gradient, which multiplies for the kernels in each step: in large layers that
is slower than Keras's loop.

Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, https://doi.org/10.1162/neco.1997.9.8.1735
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.kernels.lstm_gradients import gate_gradients
from tfaccel.training.kernels.recurrent import fused_recurrence


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
        inputs, hidden, cell, kernel, recurrent_kernel, bias = arguments
        peephole = tf.zeros_like(bias[: hidden.shape[-1]])
        steps = tf.raw_ops.BlockLSTM(
            seq_len_max=tf.shape(inputs, tf.int64)[0],
            x=inputs,
            cs_prev=cell,
            h_prev=hidden,
            w=tf.concat([kernel, recurrent_kernel], 0),
            wci=peephole,
            wcf=peephole,
            wco=peephole,
            b=bias,
            forget_bias=0.0,
            cell_clip=-1.0,
        )

        def gradients(*upstream: tf.Tensor) -> list[tf.Tensor]:
            of_gates, of_recurrent_kernel, *of_states = gate_gradients(arguments, steps, upstream)
            of_gates = tf.reshape(of_gates, [-1, bias.shape[0]])
            of_inputs = tf.reshape(tf.matmul(of_gates, kernel, transpose_b=True), tf.shape(inputs))
            of_kernel = tf.matmul(tf.reshape(inputs, [-1, kernel.shape[0]]), of_gates, transpose_a=True)
            of_bias = tf.raw_ops.BiasAddGrad(out_backprop=of_gates)
            return [of_inputs, *of_states, of_kernel, of_recurrent_kernel, of_bias]

        return (steps.h if all_steps else steps.h[-1], steps.cs[-1]), gradients

    return computed(inputs, *states, *weights)


def _in_kernel_order(weight: tf.Tensor) -> tf.Tensor:
    """A weight of Keras's with the columns of candidate and forget gate swapped."""
    entry, forget, candidate, output = tf.split(weight, 4, -1)
    return tf.concat([entry, candidate, forget, output], -1)
