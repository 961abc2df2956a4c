"""The kernels of LSTM and GRU compute what Keras's layers compute, and leave to Keras what they cannot compute."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfaccel.training.kernels.fused_kernels import fused_kernels
from tfaccel.training.kernels.recurrent import fused_gru, fused_lstm

pytestmark = pytest.mark.usefixtures("logical_devices")

BATCH, STEPS, FEATURES, UNITS = 6, 7, 4, 5
LAYERS = {
    "LSTM, last output": lambda: layers.LSTM(UNITS),
    "LSTM, all outputs": lambda: layers.LSTM(UNITS, return_sequences=True),
    "LSTM without bias": lambda: layers.LSTM(UNITS, use_bias=False),
    "LSTM backwards": lambda: layers.LSTM(UNITS, go_backwards=True, return_sequences=True),
    "LSTM unrolled": lambda: layers.LSTM(UNITS, unroll=True, return_sequences=True),
    "LSTM with dropout": lambda: layers.LSTM(UNITS, dropout=0.4, seed=2),
    "stateful LSTM": lambda: layers.LSTM(UNITS, stateful=True),
    "bidirectional LSTM": lambda: layers.Bidirectional(layers.LSTM(UNITS, return_sequences=True)),
    "LSTM from states": lambda: FromStates(layers.LSTM(UNITS, return_sequences=True, return_state=True)),
    "LSTM from states, last output": lambda: FromStates(layers.LSTM(UNITS, return_state=True)),
    "GRU, last output": lambda: layers.GRU(UNITS),
    "GRU, all outputs": lambda: layers.GRU(UNITS, return_sequences=True),
    "GRU without bias": lambda: layers.GRU(UNITS, use_bias=False),
    "GRU backwards": lambda: layers.GRU(UNITS, go_backwards=True, return_sequences=True),
    "GRU with dropout": lambda: layers.GRU(UNITS, dropout=0.4, seed=2),
    "stateful GRU": lambda: layers.GRU(UNITS, stateful=True),
    "bidirectional GRU": lambda: layers.Bidirectional(layers.GRU(UNITS)),
    "GRU from states": lambda: FromStates(layers.GRU(UNITS, return_sequences=True, return_state=True), num_states=1),
}
LEFT_TO_KERAS = {
    "LSTM with a mask": lambda: Masked(layers.LSTM(UNITS)),
    "LSTM with recurrent dropout": lambda: layers.LSTM(UNITS, recurrent_dropout=0.4, seed=2),
    "LSTM with another activation": lambda: layers.LSTM(UNITS, activation="relu"),
    "LSTM with other gates": lambda: layers.LSTM(UNITS, recurrent_activation="hard_sigmoid"),
    "LSTM with products per gate": lambda: layers.LSTM(UNITS, implementation=1),
    "LSTM in bfloat16": lambda: layers.LSTM(UNITS, dtype="mixed_bfloat16"),
    "LSTM in float64": lambda: layers.LSTM(UNITS, dtype="float64"),
    "a subclass of LSTM": lambda: Doubled(UNITS),
    "LSTM with its own loop": lambda: doubling(layers.LSTM(UNITS), "inner_loop"),
    "LSTM with its own call": lambda: doubling(layers.LSTM(UNITS), "call"),
    "LSTM whose cell has its own call": lambda: doubling(layers.LSTM(UNITS), "call", of_cell=True),
    "GRU with its own loop": lambda: doubling(layers.GRU(UNITS), "inner_loop"),
    "a cell of the user's": lambda: layers.RNN(layers.LSTMCell(UNITS)),
    "GRU with a mask": lambda: Masked(layers.GRU(UNITS)),
    "GRU with a reset before the product": lambda: layers.GRU(UNITS, reset_after=False),
    "GRU in bfloat16": lambda: layers.GRU(UNITS, dtype="mixed_bfloat16"),
}
DEFAULT = ("bidirectional LSTM", "GRU from states")
# An operation of Keras's loop that the GRU's kernel does not use.
OF_KERASS_GRU = "TensorListFromTensor"


class FromStates(layers.Layer):
    """Runs a layer from initial states that are computed, and returns everything it returns."""

    def __init__(self, layer, num_states=2):
        super().__init__()
        self.layer, self.denses = layer, [layers.Dense(UNITS) for _ in range(num_states)]

    def call(self, x):
        states = [dense(x[:, step]) for step, dense in enumerate(self.denses)]
        return tf.concat([tf.reshape(part, [BATCH, -1]) for part in self.layer(x, initial_state=states)], 1)


class Masked(layers.Layer):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, x):
        return self.layer(x, mask=x[:, :, 0] > -0.5)


class Doubled(layers.LSTM):
    def inner_loop(self, *arguments, **options):
        last, outputs, states = super().inner_loop(*arguments, **options)
        return 2.0 * last, outputs, states


def doubling(layer, name, *, of_cell=False):
    """The layer, with a method set on the instance that doubles what Keras's method returns."""
    owner = layer.cell if of_cell else layer
    method = getattr(owner, name)

    def doubled(*arguments, **options):
        return keras.tree.map_structure(lambda one: 2.0 * one, method(*arguments, **options))

    setattr(owner, name, doubled)
    return layer


def some(cases, *, default):
    """The cases; those that are not in the default run are left to --all."""
    return [pytest.param(name, marks=() if name in default else pytest.mark.slow) for name in cases]


def make_model(make, dtype="float32", steps=STEPS):
    """A model of the layer, with the same weights in every dtype."""
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(dtype)
    try:
        inputs = keras.Input(batch_shape=(BATCH, steps, FEATURES))
        model = keras.Model(inputs, make()(inputs))
    finally:
        keras.config.set_dtype_policy("float32")
    generator = np.random.default_rng(2)
    for weight in model.trainable_variables:
        weight.assign(0.5 * generator.normal(size=weight.shape).astype("float32"))
    return model


def results(model, *, fused, training=True):
    """Outputs and gradients of two steps, then the state, in float64; and the operations of the graph."""

    @tf.function(autograph=False)
    def step(inputs):
        if fused:
            with fused_kernels(model):
                return run(inputs)
        return run(inputs)

    def run(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = model(inputs, training=training)
            factors = np.random.default_rng(3).normal(size=outputs.shape)
            loss = tf.reduce_sum(tf.cast(outputs, tf.float64) * factors)
        return outputs, *tape.gradient(loss, [inputs, *(weight.value for weight in model.trainable_variables)])

    batches = [np.random.default_rng(seed).normal(size=(BATCH, STEPS, FEATURES)) for seed in range(2)]
    tensors = [tf.constant(batch.astype("float32"), model.inputs[0].dtype) for batch in batches]
    found = [np.asarray(value, np.float64) for batch in tensors for value in step(batch)]
    found += [np.asarray(weight, np.float64) for weight in model.non_trainable_variables]
    graph = step.get_concrete_function(tensors[0]).graph.as_graph_def()
    return found, {node.op for part in (graph.node, *(one.node_def for one in graph.library.function)) for node in part}


def largest_distance(found, reference):
    """The largest difference, relative in the Euclidean norm."""
    norm = np.linalg.norm
    return max(norm(a - b) / max(norm(b), 1e-12) for a, b in zip(found, reference, strict=True))


@pytest.mark.parametrize("name", some(LAYERS, default=DEFAULT))
def test_the_kernel_computes_what_keras_computes(name):
    with_kernel, operations = results(make_model(LAYERS[name]), fused=True)
    with_keras, operations_of_keras = results(make_model(LAYERS[name]), fused=False)
    assert operations != operations_of_keras
    assert ("LSTMBlockCellGrad" in operations) == ("LSTM" in name)
    assert "LSTMBlockCellGrad" not in operations_of_keras
    assert "LSTM" in name or OF_KERASS_GRU not in operations
    assert largest_distance(with_kernel, with_keras) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_the_kernel_is_as_close_to_float64_as_keras(kind):
    make = LAYERS[f"{kind}, all outputs"]
    exact, _ = results(make_model(make, "float64"), fused=False)
    of_kernel, of_keras = (
        largest_distance(results(make_model(make), fused=fused)[0], exact) for fused in (True, False)
    )
    assert of_kernel <= 2.0 * of_keras + 1e-7


@pytest.mark.parametrize(
    "name",
    some(LEFT_TO_KERAS, default=("GRU with a mask",)),
)
def test_other_layers_keep_kerass_operations(name):
    found = [results(make_model(LEFT_TO_KERAS[name]), fused=fused) for fused in (True, False)]
    assert found[0][1] == found[1][1]
    assert largest_distance(found[0][0], found[1][0]) == 0.0


@pytest.mark.parametrize("kind", [layers.LSTM, layers.GRU])
def test_methods_set_on_a_layer_or_its_cell_keep_kerass_operations(kind):
    kernel = fused_lstm if kind is layers.LSTM else fused_gru
    assert "inner_loop" in kernel(kind(UNITS))
    for name in ("inner_loop", "call"):
        assert kernel(doubling(kind(UNITS), name)) == {}
    assert kernel(doubling(kind(UNITS), "call", of_cell=True)) == {}


@pytest.mark.slow
def test_inference_and_unknown_lengths():
    with_one_length = [(name, STEPS) for name in ("LSTM with dropout", "GRU with dropout")]
    without = [(name, None) for name in ("LSTM, all outputs", "LSTM, last output", "GRU, all outputs", "GRU backwards")]
    for name, steps in with_one_length + without:
        make = LAYERS[name]
        with_kernel, operations = results(make_model(make, steps=steps), fused=True, training=False)
        with_keras, operations_of_keras = results(make_model(make, steps=steps), fused=False, training=False)
        assert operations != operations_of_keras
        assert largest_distance(with_kernel, with_keras) <= 1e-5


@pytest.mark.parametrize("batch", [0, pytest.param(9, marks=pytest.mark.slow)])
def test_graphs_for_batches_of_any_size(batch):
    recurrent = [kind(UNITS, return_sequences=True) for kind in (layers.LSTM, layers.GRU)]
    model = keras.Sequential([keras.Input((None, FEATURES)), *recurrent])

    def gradients(inputs, *, fused):
        with tf.GradientTape() as tape:
            if fused:
                with fused_kernels(model):
                    outputs = model(inputs, training=True)
            else:
                outputs = model(inputs, training=True)
            loss = tf.reduce_sum(outputs**2)
        return tape.gradient(loss, [weight.value for weight in model.trainable_variables])

    inputs = tf.constant(np.random.default_rng(0).normal(size=(batch, STEPS, FEATURES)), tf.float32)
    spec = tf.TensorSpec([None, None, FEATURES])
    fused, plain = (
        tf.function(lambda x, on=on: gradients(x, fused=on), input_signature=[spec])(inputs) for on in (True, False)
    )
    for received, expected in zip(fused, plain, strict=True):
        np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LAYERS if "output" in name])
def test_second_derivatives_are_kerass(name):
    """A gradient penalty differentiates the gradient, also with respect to the weights."""

    def penalty_gradients(model, inputs):
        weights = [weight.value for weight in model.trainable_variables]
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                outputs = tf.tanh(model(inputs, training=True))
            penalty = tf.reduce_sum(tf.norm(inner.gradient(outputs, inputs), axis=-1) ** 2)
        return outer.gradient(penalty, [inputs, *weights], unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def found(dtype, *, fused):
        model = make_model(LAYERS[name], dtype)

        @tf.function(autograph=False)
        def step(inputs):
            if fused:
                with fused_kernels(model):
                    return penalty_gradients(model, inputs)
            return penalty_gradients(model, inputs)

        values = np.random.default_rng(5).normal(size=(BATCH, STEPS, FEATURES)).astype("float32")
        inputs = tf.constant(values, dtype)
        return [np.asarray(value, np.float64) for value in step(inputs)]

    assert largest_distance(found("float32", fused=True), found("float64", fused=False)) <= 1e-5
