"""Simulated steps beside what can be worked out by hand: last uses, results in place, loops, updates, batch sizes."""

import pytest

MIB = 2**20


def simulated(function, *shapes):
    """What a function of float32 tensors of these shapes takes, and its program."""
    import tensorflow as tf

    from tfaccel.measuring.step_program import make_program
    from tfaccel.measuring.step_simulation import simulate

    specs = [tf.TensorSpec(shape) for shape in shapes]
    graph = tf.function(function, autograph=False).get_concrete_function(*specs).graph
    return simulate(make_program(graph)), make_program(graph)


def test_a_tensor_is_freed_after_its_last_use(logical_devices):
    use, _ = simulated(lambda a: a @ a @ a @ a @ a, (512, 512))
    assert use.peak_bytes == 2 * MIB  # a product and the one before it


def test_elementwise_operations_write_into_their_input(logical_devices):
    import tensorflow as tf

    use, _ = simulated(lambda a: tf.nn.relu(tf.exp(-(a @ a))), (512, 512))
    assert use.peak_bytes == MIB
    use, _ = simulated(lambda a: tf.nn.relu(tf.cast(a @ a, tf.bfloat16)), (512, 512))
    assert use.peak_bytes == 1.5 * MIB


def test_arguments_are_not_counted_nor_overwritten(logical_devices):
    import tensorflow as tf

    use, _ = simulated(lambda a: tf.exp(a), (512, 512))
    assert use.peak_bytes == MIB


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

    use, _ = simulated(step, (1024, 256))
    assert sum(num_bytes for _, num_bytes in use.activations) == pytest.approx(3 * MIB, abs=1000)
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

    use, _ = simulated(step, (1024, 256))
    kept = sum(num_bytes for _, num_bytes in use.activations)
    assert 10 * MIB <= kept <= 21 * MIB  # the products' inputs and tanh's results, which are the same tensors but one
    assert use.num_unknown == 0


def test_updating_a_variable_takes_no_second_one(logical_devices):
    import tensorflow as tf

    variable = tf.Variable(tf.zeros((512, 512)))

    def step(x):
        variable.assign_add(x @ x)
        return ()

    use, _ = simulated(step, (512, 512))
    assert use.peak_bytes <= 3 * MIB  # as it is initialized; the step takes two


def test_the_program_of_any_batch_size_follows_from_two(logical_devices):
    import keras
    import tensorflow as tf

    from tfaccel.measuring.step_program import make_program
    from tfaccel.measuring.step_simulation import simulate
    from tfaccel.measuring.traced_step import TracedSizes

    layers = [keras.layers.Conv2D(8, 3), keras.layers.BatchNormalization(), keras.layers.LSTM(8), keras.layers.Dense(3)]
    layers.insert(2, keras.layers.Reshape((36, 8)))
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
    model.compile("adam", "mse")
    step = tf.function(model.train_step, autograph=False)

    def program(size):
        specs = tf.TensorSpec((size, 8, 8, 1)), tf.TensorSpec((size, 3))
        return make_program(step.get_concrete_function(specs).graph)

    program(32)  # builds the optimizer and the metrics
    sizes = TracedSizes({size: program(size) for size in (64, 128)})
    assert sizes.has_any_size
    assert simulate(sizes.of(500)) == simulate(program(500))
    with pytest.raises(KeyError):
        TracedSizes({64: sizes.programs[64]}).of(65)
