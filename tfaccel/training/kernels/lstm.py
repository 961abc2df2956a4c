"""LSTM on the CPU by TensorFlow's kernel for whole sequences, with a gradient in closed form.

Keras loops over the steps, with some 20 operations per step forward and as many backward. TensorFlow's `BlockLSTM`
computes all steps in one operation; it serves here without its own gradient, which is slower than Keras's loop.

Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, https://doi.org/10.1162/neco.1997.9.8.1735
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.kernels.lstm_gradients import gate_gradients
from tfaccel.training.private import private_recurrent


def fused_lstm(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make an `LSTM` use `lstm` where it can, if all devices are CPUs; {} for other layers.

    Keras's operations compute the rest: masks, recurrent dropout, other activations, other dtypes than float32.
    """
    if not private_recurrent.computes_keras_lstm(layer) or _has_accelerators():
        return {}
    keras_loop, cell = layer.inner_loop, layer.cell

    def inner_loop(sequences: Any, initial_state: Any, mask: Any, training: bool = False) -> Any:
        states = [tf.convert_to_tensor(state) for state in initial_state]
        is_float32 = all(tensor.dtype == tf.float32 for tensor in (sequences, *states))
        if not is_float32 or any(part is not None for part in keras.tree.flatten(mask)):
            return keras_loop(sequences, initial_state, mask, training=training)
        if training and 0.0 < cell.dropout < 1.0:
            sequences = sequences * cell.get_dropout_mask(sequences[:, 0, :])[:, tf.newaxis]
        inputs = tf.transpose(sequences, [1, 0, 2])
        inputs = tf.reverse(inputs, [0]) if layer.go_backwards else inputs
        bias = tf.zeros([4 * cell.units]) if cell.bias is None else cell.bias
        weights = [_in_kernel_order(one) for one in (cell.kernel, cell.recurrent_kernel, bias)]
        hidden, last_cell = lstm(inputs, states, weights, all_steps=layer.return_sequences)
        if not layer.return_sequences:
            return hidden, hidden[:, tf.newaxis], [hidden, last_cell]
        return hidden[-1], tf.transpose(hidden, [1, 0, 2]), [hidden[-1], last_cell]

    return {"inner_loop": inner_loop}


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


def _in_kernel_order(weight: Any) -> tf.Tensor:
    """A weight of Keras's with the columns of candidate and forget gate swapped."""
    entry, forget, candidate, output = tf.split(tf.convert_to_tensor(weight), 4, -1)
    return tf.concat([entry, candidate, forget, output], -1)


def _has_accelerators() -> bool:
    return any(device.device_type != "CPU" for device in tf.config.list_logical_devices())
