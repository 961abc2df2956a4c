"""The LSTM kernel computes what Keras's LSTM computes, and leaves to Keras what it cannot compute."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfaccel.training.kernels.fused_kernels import fused_kernels

pytestmark = pytest.mark.usefixtures("logical_devices")

BATCH, STEPS, FEATURES, UNITS = 6, 7, 4, 5
LAYERS = {
    "last output": lambda: layers.LSTM(UNITS),
    "all outputs": lambda: layers.LSTM(UNITS, return_sequences=True),
    "without bias": lambda: layers.LSTM(UNITS, use_bias=False),
    "backwards": lambda: layers.LSTM(UNITS, go_backwards=True, return_sequences=True),
    "unrolled": lambda: layers.LSTM(UNITS, unroll=True, return_sequences=True),
    "dropout": lambda: layers.LSTM(UNITS, dropout=0.4, seed=2),
    "stateful": lambda: layers.LSTM(UNITS, stateful=True),
    "bidirectional": lambda: layers.Bidirectional(layers.LSTM(UNITS, return_sequences=True)),
    "with states": lambda: WithStates(layers.LSTM(UNITS, return_sequences=True, return_state=True)),
    "with states of the last output": lambda: WithStates(layers.LSTM(UNITS, return_state=True)),
}
LEFT_TO_KERAS = {
    "a mask": lambda: Masked(layers.LSTM(UNITS)),
    "recurrent dropout": lambda: layers.LSTM(UNITS, recurrent_dropout=0.4, seed=2),
    "another activation": lambda: layers.LSTM(UNITS, activation="relu"),
    "another gate activation": lambda: layers.LSTM(UNITS, recurrent_activation="hard_sigmoid"),
    "products per gate": lambda: layers.LSTM(UNITS, implementation=1),
    "bfloat16": lambda: layers.LSTM(UNITS, dtype="mixed_bfloat16"),
    "float64": lambda: layers.LSTM(UNITS, dtype="float64"),
    "a subclass": lambda: Doubled(UNITS),
    "a cell of the user's": lambda: layers.RNN(layers.LSTMCell(UNITS)),
}


def some(cases, *, default):
    """The cases; those that are not in the default run are left to --all."""
    return [pytest.param(name, marks=() if name in default else pytest.mark.slow) for name in cases]


class WithStates(layers.Layer):
    """Runs a layer from initial states that are computed, and returns everything it returns."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.first, self.second = layer, layers.Dense(UNITS), layers.Dense(UNITS)

    def call(self, x):
        states = [self.first(x[:, 0]), self.second(x[:, 1])]
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


def model_of(make, dtype="float32", steps=STEPS):
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
    return found, {node.type for node in step.get_concrete_function(tensors[0]).graph.get_operations()}


def largest_distance(found, reference):
    """The largest difference, relative in the Euclidean norm."""
    norm = np.linalg.norm
    return max(norm(a - b) / max(norm(b), 1e-12) for a, b in zip(found, reference, strict=True))


@pytest.mark.parametrize("name", some(LAYERS, default=("dropout", "bidirectional", "with states")))
def test_the_kernel_computes_what_keras_computes(name):
    with_kernel, operations = results(model_of(LAYERS[name]), fused=True)
    with_keras, operations_of_keras = results(model_of(LAYERS[name]), fused=False)
    assert "BlockLSTM" in operations
    assert "BlockLSTM" not in operations_of_keras
    assert not {"Sigmoid", "Tanh"} & operations
    assert largest_distance(with_kernel, with_keras) <= 1e-5


@pytest.mark.slow
def test_the_kernel_is_as_close_to_float64_as_keras():
    make = LAYERS["all outputs"]
    exact, _ = results(model_of(make, "float64"), fused=False)
    of_kernel, of_keras = (largest_distance(results(model_of(make), fused=fused)[0], exact) for fused in (True, False))
    assert of_kernel <= 2.0 * of_keras + 1e-7


@pytest.mark.parametrize("name", some(LEFT_TO_KERAS, default=("a mask", "bfloat16", "a subclass")))
def test_other_layers_keep_kerass_operations(name):
    found = [results(model_of(LEFT_TO_KERAS[name]), fused=fused) for fused in (True, False)]
    assert found[0][1] == found[1][1]
    assert largest_distance(found[0][0], found[1][0]) == 0.0


@pytest.mark.slow
def test_inference_and_unknown_lengths():
    for make, steps in ((LAYERS["dropout"], STEPS), (LAYERS["all outputs"], None), (LAYERS["last output"], None)):
        with_kernel, operations = results(model_of(make, steps=steps), fused=True, training=False)
        with_keras, _ = results(model_of(make, steps=steps), fused=False, training=False)
        assert "BlockLSTM" in operations
        assert largest_distance(with_kernel, with_keras) <= 1e-5


@pytest.mark.parametrize("batch", [0, pytest.param(9, marks=pytest.mark.slow)])
def test_graphs_for_batches_of_any_size(batch):
    layer = layers.LSTM(UNITS, return_sequences=True)
    model = keras.Sequential([keras.Input((None, FEATURES)), layer])

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


@pytest.mark.parametrize("name", ["all outputs", pytest.param("last output", marks=pytest.mark.slow)])
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
        model = model_of(LAYERS[name], dtype)

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
