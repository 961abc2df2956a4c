"""The gradient of a GRU's recurrence, in closed form, and the gradient of that gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfaccel.training.kernels.recurrent import before_each_step, differentiable_again, num_steps, unrolled_loop


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
