"""GRU on the CPU with one matrix product for the inputs of all steps, and a gradient in closed form.

Keras multiplies the inputs in each step, and automatic differentiation of its loop multiplies for the gradients of the
inputs and of both kernels in each step.

Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014, https://arxiv.org/abs/1406.1078
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.kernels.gru_gradients import recurrent_gradients
from tfaccel.training.kernels.recurrent import fused_recurrence, num_steps, unrolled_loop


def fused_gru(layer: keras.layers.Layer) -> dict[str, Any]:
    """Attributes that make a `GRU` with `reset_after=True` use `gru` where it can; {} for other layers."""
    if not isinstance(layer, keras.layers.GRU) or not layer.reset_after:
        return {}

    def run(inputs: tf.Tensor, states: Sequence[tf.Tensor], weights: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        kernel, recurrent_kernel, *biases = weights
        biases = tf.unstack(biases[0]) if biases else [tf.zeros(kernel.shape[-1:])] * 2
        return [gru(inputs, states[0], [kernel, recurrent_kernel, *biases], all_steps=layer.return_sequences)]

    return fused_recurrence(layer, keras.layers.GRU, run)


def gru(inputs: tf.Tensor, state: tf.Tensor, weights: Sequence[tf.Tensor], *, all_steps: bool) -> tf.Tensor:
    """Runs a GRU with sigmoid gates and tanh, reset after the matrix product. All tensors are float32.

    Args:
        inputs: shape `(steps, batch, features)`, with at least one step.
        state: the hidden state before the first step, of shape `(batch, units)`.
        weights: kernel, recurrent kernel and the biases of both; their `3 * units` columns are those of the update
            gate, the reset gate and the candidate.
        all_steps: return the hidden states after all steps, not only after the last one.

    Returns:
        The hidden states, of shape `(steps, batch, units)` or `(batch, units)`.

    Example:
        >>> weights = [tf.ones([3, 6]), tf.ones([2, 6]), tf.zeros([6]), tf.zeros([6])]
        >>> hidden = gru(tf.zeros([5, 4, 3]), tf.zeros([4, 2]), weights, all_steps=True)
        >>> hidden.shape.as_list(), float(tf.reduce_max(tf.abs(hidden)))
        ([5, 4, 2], 0.0)
    """

    @tf.custom_gradient
    def computed(*arguments: tf.Tensor) -> tuple[Any, Any]:
        inputs, _, kernel, *_ = arguments
        rows = tf.reshape(inputs, [-1, kernel.shape[0]])
        outputs, saved = _all_steps(*arguments)

        def gradients(upstream: tf.Tensor) -> list[tf.Tensor]:
            of_inner, of_outer, of_recurrent_kernel, of_state = recurrent_gradients(arguments, saved, upstream)
            of_inner, of_outer = (tf.reshape(one, [-1, kernel.shape[1]]) for one in (of_inner, of_outer))
            of_inputs = tf.reshape(tf.matmul(of_outer, kernel, transpose_b=True), tf.shape(inputs))
            of_biases = [tf.raw_ops.BiasAddGrad(out_backprop=one) for one in (of_outer, of_inner)]
            return [of_inputs, of_state, tf.matmul(rows, of_outer, transpose_a=True), of_recurrent_kernel, *of_biases]

        return outputs if all_steps else outputs[-1], gradients

    return computed(inputs, state, *weights)


def _all_steps(
    inputs: tf.Tensor,
    state: tf.Tensor,
    kernel: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    bias: tf.Tensor,
    recurrent_bias: tf.Tensor,
) -> tuple[tf.Tensor, dict[str, tf.TensorArray | tf.Tensor]]:
    """The hidden states after all steps, and what the gradient needs."""
    units, length = recurrent_kernel.shape[0], num_steps(inputs)
    projected = tf.nn.bias_add(tf.matmul(tf.reshape(inputs, [-1, kernel.shape[0]]), kernel), bias)
    projected = tf.reshape(projected, [*tf.unstack(tf.shape(inputs)[:2]), 3 * units])
    of_gates, of_candidate = projected[..., : 2 * units], projected[..., 2 * units :]
    names = ("state", "update", "reset", "candidate", "product")
    arrays = [tf.TensorArray(tf.float32, length, element_shape=[state.shape[0], units]) for _ in names]

    def one_step(step: Any, state: tf.Tensor, *arrays: tf.TensorArray) -> Any:
        products = tf.nn.bias_add(tf.matmul(state, recurrent_kernel), recurrent_bias)
        for_gates, product = tf.split(products, [2 * units, units], 1)
        update, reset = tf.split(tf.sigmoid(of_gates[step] + for_gates), 2, 1)
        candidate = tf.tanh(of_candidate[step] + reset * product)
        state = candidate + update * (state - candidate)
        values = (state, update, reset, candidate, product)
        return step + 1, state, *(array.write(step, value) for array, value in zip(arrays, values, strict=True))

    start = (tf.constant(0), state, *arrays)
    _, _, *arrays = unrolled_loop(one_step, start, length)
    states, *others = arrays
    outputs = states.stack()
    return outputs, {"outputs": outputs, **dict(zip(names[1:], others, strict=True))}
