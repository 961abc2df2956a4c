"""GRU on the CPU: one matrix product for the inputs of all steps, a gradient in closed form, and the gradient of that.

Keras multiplies the inputs in each step, and automatic differentiation of its loop multiplies for the gradients of the
inputs and of both kernels in each step.

Source: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014, https://arxiv.org/abs/1406.1078
"""

from __future__ import annotations

from collections.abc import Sequence
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


def recurrent_gradients(
    arguments: Sequence[tf.Tensor], saved: dict[str, Any], upstream: tf.Tensor
) -> Sequence[tf.Tensor]:
    """Gradients of all steps' matrix products, and of the recurrent kernel and the initial state.

    Args:
        arguments: inputs, initial state, kernel, recurrent kernel and the two biases, as in `gru`.
        saved: the hidden states ("outputs"), and by step the gates ("update", "reset"), the candidate state
            ("candidate") and its recurrent product before the reset ("product").
        upstream: the gradient with respect to the hidden states, of all steps or of the last one.

    Returns:
        Gradients with respect to the recurrent products and to the projected inputs, of shape
        `(steps, batch, 3 * units)`, to the recurrent kernel and to the initial state.
    """
    return differentiable_again(
        (*arguments, upstream),
        fast=lambda *values: _in_closed_form(values[:6], saved, values[6]),
        differentiable=lambda *values: _by_automatic_differentiation(values[:6], values[6]),
    )


def _in_closed_form(
    arguments: Sequence[tf.Tensor], saved: dict[str, Any], upstream: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    inputs, state, _, recurrent_kernel, *_ = arguments
    units, length, of_all_steps = recurrent_kernel.shape[0], num_steps(inputs), len(upstream.shape) == 3
    before, transposed = before_each_step(state, saved["outputs"]), tf.transpose(recurrent_kernel)

    def one_step(done: Any, of_state: tf.Tensor, of_inner: tf.TensorArray, of_outer: tf.TensorArray) -> Any:
        step = length - 1 - done
        of_state = of_state + upstream[step] if of_all_steps else of_state
        names = ("update", "reset", "candidate", "product")
        update, reset, candidate, product = (saved[name].read(step) for name in names)
        through = of_state * update
        of_candidate = tf.raw_ops.TanhGrad(y=candidate, dy=of_state - through)
        of_update = tf.raw_ops.SigmoidGrad(y=update, dy=of_state * (before[step] - candidate))
        of_reset = tf.raw_ops.SigmoidGrad(y=reset, dy=of_candidate * product)
        of_products = tf.concat([of_update, of_reset, of_candidate * reset], 1)
        of_inner, of_outer = of_inner.write(step, of_products), of_outer.write(step, of_candidate)
        return done + 1, through + tf.matmul(of_products, transposed), of_inner, of_outer

    arrays = [tf.TensorArray(tf.float32, length, element_shape=[state.shape[0], size * units]) for size in (3, 1)]
    start = (tf.constant(0), tf.zeros_like(state) if of_all_steps else upstream, *arrays)
    _, of_state, *arrays = unrolled_loop(one_step, start, length)
    of_inner, of_candidate = (array.stack() for array in arrays)
    of_outer = tf.concat([of_inner[..., : 2 * units], of_candidate], -1)
    rows = tf.reshape(of_inner, [-1, 3 * units])
    return of_inner, of_outer, tf.matmul(tf.reshape(before, [-1, units]), rows, transpose_a=True), of_state


def _by_automatic_differentiation(arguments: Sequence[tf.Tensor], upstream: tf.Tensor) -> list[tf.Tensor]:
    """The same gradients from a loop of operations that TensorFlow can differentiate again."""
    inputs, state, kernel, recurrent_kernel, bias, recurrent_bias = arguments
    units, length = recurrent_kernel.shape[0], num_steps(inputs)
    projected = tf.matmul(inputs, kernel) + bias
    biases = tf.zeros_like(projected) + recurrent_bias
    sources = [biases, projected, recurrent_kernel, state]
    with tf.GradientTape() as tape:
        tape.watch(sources)

        def body(step: tf.Tensor, outputs: tf.TensorArray, state: tf.Tensor) -> Any:
            products = tf.matmul(state, recurrent_kernel) + biases[step]
            update, reset = tf.split(tf.sigmoid((projected[step] + products)[:, : 2 * units]), 2, -1)
            candidate = tf.tanh(projected[step][:, 2 * units :] + reset * products[:, 2 * units :])
            state = update * state + (1.0 - update) * candidate
            return step + 1, outputs.write(step, state), state

        start = (tf.constant(0), tf.TensorArray(tf.float32, length, element_shape=state.shape), state)
        loop = tf.while_loop(lambda step, *_: step < length, body, start, maximum_iterations=length)
        result = loop[1].stack() if len(upstream.shape) == 3 else loop[2]
    return tape.gradient(result, sources, upstream)
