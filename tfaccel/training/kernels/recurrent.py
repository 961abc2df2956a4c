"""LSTM and GRU on the CPU: one matrix product for the inputs of all steps, and derivatives of every order.

Keras multiplies the inputs in each step, and automatic differentiation of its loop multiplies for the gradients of the
inputs and of the kernels in each step. Here the gradient is in closed form, and so fast; the gradient of that gradient
is found by automatic differentiation. TensorFlow's `BlockLSTM`, which computes all steps in one operation, is slower
than this loop: its products do not use the wide vectors of newer CPUs, and its gradient multiplies for the kernels in
each step.

Sources: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, https://doi.org/10.1162/neco.1997.9.8.1735;
Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014, https://arxiv.org/abs/1406.1078
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfaccel.training.private import private_layers

_STEPS_TOGETHER = 4  # in one iteration of a loop

Run = Callable[[tf.Tensor, Sequence[tf.Tensor], Sequence[tf.Tensor]], Sequence[tf.Tensor]]

_SAVED_OF_LSTM = ("i", "cs", "f", "o", "ci", "co", "cs_prev", "h")


def fused_recurrence(layer: keras.layers.Layer, kind: type[keras.layers.RNN], run: Run) -> dict[str, Any]:
    """Attributes that make an RNN layer compute its steps with `run`, if all devices are CPUs; {} for other layers.

    Keras's operations compute masked sequences, and other dtypes than float32.

    Args:
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
        >>> int(unrolled_loop(lambda done, x: (done + 1, 2 * x), (tf.constant(0), tf.constant(1)), 6)[1])
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


# --- LSTM ---------------------------------------------------------------------------------------------------------


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
        steps, last_hidden, last_cell = _run_lstm(arguments)
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


def _run_lstm(arguments: Sequence[tf.Tensor]) -> tuple[dict[str, tf.TensorArray], tf.Tensor, tf.Tensor]:
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
        arrays = {name: arrays[name].write(step, value) for name, value in zip(_SAVED_OF_LSTM, values, strict=True)}
        return step + 1, arrays, hidden, cell

    array = tf.TensorArray(tf.float32, length, element_shape=hidden.shape, clear_after_read=False)
    start = (tf.constant(0), dict.fromkeys(_SAVED_OF_LSTM, array), hidden, cell)
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
        fast=lambda *values: _lstm_gradients(values[:6], steps, hiddens, values[6:]),
        differentiable=lambda *values: _lstm_gradients_by_tape(values[:6], values[6:]),
    )


def _lstm_gradients(
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


def _lstm_gradients_by_tape(arguments: Sequence[tf.Tensor], upstream: Sequence[tf.Tensor]) -> list[tf.Tensor]:
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


# --- GRU ----------------------------------------------------------------------------------------------------------


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
        outputs, saved = _run_gru(*arguments)

        def gradients(upstream: tf.Tensor) -> list[tf.Tensor]:
            of_inner, of_outer, of_recurrent_kernel, of_state = recurrent_gradients(arguments, saved, upstream)
            of_inner, of_outer = (tf.reshape(one, [-1, kernel.shape[1]]) for one in (of_inner, of_outer))
            of_inputs = tf.reshape(tf.matmul(of_outer, kernel, transpose_b=True), tf.shape(inputs))
            of_biases = [tf.raw_ops.BiasAddGrad(out_backprop=one) for one in (of_outer, of_inner)]
            return [of_inputs, of_state, tf.matmul(rows, of_outer, transpose_a=True), of_recurrent_kernel, *of_biases]

        return outputs if all_steps else outputs[-1], gradients

    return computed(inputs, state, *weights)


def _run_gru(
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
        fast=lambda *values: _gru_gradients(values[:6], saved, values[6]),
        differentiable=lambda *values: _gru_gradients_by_tape(values[:6], values[6]),
    )


def _gru_gradients(
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


def _gru_gradients_by_tape(arguments: Sequence[tf.Tensor], upstream: tf.Tensor) -> list[tf.Tensor]:
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
