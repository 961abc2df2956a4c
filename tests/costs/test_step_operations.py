"""Operations of a training step, counted from its graph, beside closed formulas for models of many kinds."""

import pytest

from tfaccel import Workload
from tfaccel.errors import WorkloadError
from tfaccel.measuring.get_cost import get_cost

BATCH = 4


def costs_of(build, inputs, outputs, **changes):
    """The costs of a step of a model that maps inputs of a shape to outputs of another one."""
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensors((tf.zeros((BATCH, *inputs)), tf.zeros((BATCH, *outputs))))
    given = {
        "build_model": build,
        "compile_args": lambda: {"optimizer": "adam", "loss": "mse"},
        "train_data": lambda global_batch_size, *, seed, epoch: rows,
    }
    return get_cost(Workload("mine", **{**given, **changes}, global_batch_size=BATCH))


def layers_of(*shape_and_layers):
    def build():
        import keras

        return keras.Sequential([keras.Input(shape_and_layers[0]), *shape_and_layers[1]()])

    return build


def test_dense(logical_devices):
    from keras import layers

    build = layers_of((5,), lambda: [layers.Dense(7, activation="relu"), layers.Dense(3)])
    costs = costs_of(build, (5,), (3,))
    # Each kernel is multiplied forward and for its gradient; back to the inputs goes only what a layer before needs.
    assert costs.step.matrix_flops == 2 * BATCH * (2 * 5 * 7 + 3 * 7 * 3)
    assert costs.num_parameters == 5 * 7 + 7 + 7 * 3 + 3


def test_convolutions(logical_devices):
    from keras import layers

    def made():
        yield layers.Conv2D(4, 3, padding="same")  # 8 x 8
        yield layers.DepthwiseConv2D(3, strides=2, padding="same")  # 4 x 4
        yield layers.Conv2D(6, 1, groups=2)
        yield layers.Conv2DTranspose(5, 2, strides=2)  # from 4 x 4 to 8 x 8
        yield layers.Reshape((64, 5))
        yield layers.Conv1D(2, 3, padding="causal")
        yield layers.Flatten()
        yield layers.Dense(3)

    first = 64 * 9 * 3 * 4
    others = 16 * 9 * 4 + 16 * 2 * 6 + 16 * 6 * 4 * 5 + 64 * 3 * 5 * 2 + 128 * 3
    costs = costs_of(layers_of((8, 8, 3), lambda: list(made())), (8, 8, 3), (3,))
    # TensorFlow pads a causal convolution's input itself, so that nothing more is multiplied.
    assert costs.step.matrix_flops == 2 * BATCH * (2 * first + 3 * others)


def test_attention_and_an_einsum_with_dots(logical_devices):
    import keras
    from keras import layers

    heads, width, length, size = 2, 3, 6, 8

    def build():
        inputs = keras.Input((length, size))
        x = layers.EinsumDense("...x,xy->...y", output_shape=size)(inputs)
        return keras.Model(inputs, layers.MultiHeadAttention(heads, width)(x, x))

    projections = 4 * length * size * heads * width
    products = 2 * heads * length * length * width  # the scores, and what they select
    costs = costs_of(build, (length, size), (length, size))
    assert costs.step.matrix_flops == 2 * BATCH * (2 * length * size * size + 3 * (projections + products))


@pytest.mark.parametrize(("name", "gates"), [("LSTM", 4), ("GRU", 3), ("SimpleRNN", 1)])
def test_recurrent_layers_count_as_often_as_they_run(logical_devices, name, gates):
    from keras import layers

    length, inputs, units = 9, 5, 4
    build = layers_of((length, inputs), lambda: [getattr(layers, name)(units), layers.Dense(3)])
    costs = costs_of(build, (length, inputs), (3,))
    of_inputs, of_states = length * gates * units * inputs, length * gates * units * units
    # As of a dense layer that is the first one, nothing goes back to the inputs; to the first state it does.
    assert costs.step.matrix_flops == 2 * BATCH * (2 * of_inputs + 3 * of_states + 3 * units * 3)
    biases = 6 * units if name == "GRU" else gates * units
    assert costs.num_parameters == gates * units * (inputs + units) + biases + units * 3 + 3


def test_embeddings_only_look_up(logical_devices):
    from keras import layers

    build = layers_of((6,), lambda: [layers.Embedding(50, 8), layers.GlobalAveragePooling1D(), layers.Dense(3)])
    costs = costs_of(build, (6,), (3,))
    assert costs.step.matrix_flops == 2 * BATCH * 3 * 8 * 3
    assert costs.num_parameters == 50 * 8 + 8 * 3 + 3


def test_loops_branches_and_functions_of_one_s_own(logical_devices):
    import tensorflow as tf

    from tfaccel.costs.graph_operations import graph_operations

    def counted(function, *shapes):
        return graph_operations(tf.function(function).get_concrete_function(*map(tf.TensorSpec, shapes)).graph)

    square = tf.function(lambda x: x @ x)

    def loop(x):
        for _ in tf.range(5):
            for _ in tf.range(2):
                x = square(x)
        return tf.cond(tf.reduce_sum(x) > 0, lambda: x @ x @ x, lambda: x)

    assert counted(loop, (3, 3)) == (5 * 2 + 2) * 2 * 27
    assert (
        counted(lambda x: tf.while_loop(lambda y: True, lambda y: (y @ y,), (x,), maximum_iterations=4), (3, 3)) == 216
    )
    assert counted(lambda x: x + x, (3, 3)) == 0
    with pytest.raises(WorkloadError, match=r"while cannot be counted: how often it runs depends on data\."):
        counted(lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) < 9, lambda y: (y @ y,), (x,)), (3, 3))
    with pytest.raises(WorkloadError, match=r"matmul cannot be counted: its shape \(None, 3\) depends on the data\."):
        counted(lambda x: x @ tf.zeros((3, 2)), (None, 3))
