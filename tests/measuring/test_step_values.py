"""The values of traced steps beside what can be worked out by hand: views, loops, recomputation, batch sizes."""

import functools

import pytest

MIB = 2**20


def values_of(function, *shapes):
    """The values that a function of float32 tensors of these shapes makes."""
    import tensorflow as tf

    from tfaccel.measuring.step_values import read_values

    specs = [tf.TensorSpec(shape) for shape in shapes]
    return read_values(tf.function(function, autograph=False).get_concrete_function(*specs).graph)


def kept_bytes(step):
    """The bytes that the backward pass reads of the forward pass."""
    return sum(value.num_bytes for value in step.values if value.is_kept)


def test_views_constants_and_arguments_take_no_memory(logical_devices):
    import tensorflow as tf

    step = values_of(lambda a: tf.reshape(tf.identity(tf.exp(a) + 1.0), (-1,)), (512, 512))
    assert [value.num_bytes for value in step.values] == [MIB, MIB]
    assert kept_bytes(step) == 0


def test_activations_are_what_the_backward_pass_needs(logical_devices):
    import tensorflow as tf

    weights = [tf.Variable(tf.zeros((256, 256))) for _ in range(3)]

    def step(x):
        with tf.GradientTape() as tape:
            hidden = x
            for weight in weights:
                hidden = tf.nn.relu(hidden @ weight)
            loss = tf.reduce_sum(hidden)
        return tape.gradient(loss, weights)

    found = values_of(step, (1024, 256))
    assert kept_bytes(found) == pytest.approx(3 * MIB, abs=1000)
    assert found.operand_bytes == MIB  # of the gradient of a weight
    for weight in weights:
        assert weight.shape == (256, 256)


def test_a_loop_keeps_the_values_of_all_iterations(logical_devices):
    import tensorflow as tf

    weight = tf.Variable(tf.zeros((256, 256)))

    def step(x):
        with tf.GradientTape() as tape:
            body = lambda i, h: (i + 1, tf.tanh(h @ weight))  # noqa: E731
            _, last = tf.while_loop(lambda i, h: i < 10, body, (0, x), maximum_iterations=10)
            loss = tf.reduce_sum(last)
        return tape.gradient(loss, weight)

    found = values_of(step, (1024, 256))
    assert kept_bytes(found) == pytest.approx(10 * MIB, abs=1000)  # tanh's results, which the next products read
    assert found.num_unknown == 0


def test_a_loop_of_unknown_length_is_counted_once(logical_devices):
    import tensorflow as tf

    def step(x):
        body = lambda h: tf.tanh(h)  # noqa: E731
        return tf.while_loop(lambda h: tf.reduce_sum(h) > 1.0, body, (x,))

    assert values_of(step, (256, 256)).num_unknown == 1


def test_of_branches_the_larger_one_counts(logical_devices):
    import tensorflow as tf

    def step(x):
        return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.tanh(x), lambda: tf.reduce_sum(tf.exp(x) + tf.sin(x), axis=0))

    found = [value.num_bytes for value in values_of(step, (512, 512)).values]
    assert sum(size == MIB for size in found) == 3


def test_what_the_backward_pass_recomputes_is_not_kept(logical_devices):
    import tensorflow as tf

    weight = tf.Variable(tf.zeros((256, 256)))

    def step(x, *, recomputes):
        block = lambda hidden: tf.tanh(tf.tanh(hidden @ weight) @ weight)  # noqa: E731
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.recompute_grad(block) if recomputes else block)(tf.exp(x)))
        return tape.gradient(loss, weight)

    kept, recomputed = (values_of(functools.partial(step, recomputes=value), (1024, 256)) for value in (False, True))
    assert kept_bytes(recomputed) == pytest.approx(MIB, abs=1000)  # what the block takes
    assert kept_bytes(kept) == pytest.approx(3 * MIB, abs=1000)
    assert {value.block for value in recomputed.values} == {None, 0}
    again = sum(value.num_bytes for value in recomputed.values if value.block is not None)
    assert again == pytest.approx(3 * MIB, abs=1000)  # both results, and a copy of what the block takes
    assert all(value.block is None for value in kept.values)


def test_the_values_for_any_batch_size_follow_from_two(logical_devices):
    import keras
    import tensorflow as tf

    from tfaccel.measuring.step_values import read_values

    layers = [keras.layers.Conv2D(8, 3), keras.layers.BatchNormalization(), keras.layers.LSTM(8), keras.layers.Dense(3)]
    layers.insert(2, keras.layers.Reshape((36, 8)))
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.compile("adam", "mse")
    step = tf.function(model.train_step, autograph=False)

    def traced(size):
        specs = tf.TensorSpec((size, 8, 8, 1)), tf.TensorSpec((size, 3))
        return read_values(step.get_concrete_function(specs).graph)

    traced(32)  # builds the optimizer and the metrics
    small, large = traced(64), traced(128)
    assert small.is_like(large)
    assert not small.is_like(values_of(tf.exp, (64,)))
    assert small.toward(large, (500 - 64) / 64).values == traced(500).values
