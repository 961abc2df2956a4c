"""How often the Python code of a step of one's own runs: a first call should not cost more than Keras's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel


class Counted:
    """A step of its own, with a log that no metric has."""

    def train_step(self, data):
        self.num_traces = getattr(self, "num_traces", 0) + 1
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"own": loss, "norm": {"kernel": tf.norm(gradients[0])}}


class FunctionalModel(Counted, keras.Model):
    pass


class SubclassedModel(Counted, keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(8), keras.layers.Dense(1)

    def call(self, x):
        return self.out(self.hidden(x))


def functional():
    inputs = keras.Input((4,))
    return FunctionalModel(inputs, keras.layers.Dense(1)(keras.layers.Dense(8)(inputs)))


def trained(fit, make, num_rows, epochs=3):
    """The number of traces, the history, and the weights."""
    keras.utils.set_random_seed(0)
    model = make()
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    x = np.random.default_rng(0).random((num_rows, 4), "float32")
    history = fit(model, x, x[:, :1], batch_size=8, epochs=epochs, verbose=0, shuffle=False).history
    return model.num_traces, history, model.get_weights()


@pytest.mark.parametrize(
    ("make", "num_rows", "most"),
    [
        (functional, 40, 1),
        (functional, 42, 1),  # the last batch is smaller
        (SubclassedModel, 40, 2),  # the first trace creates the weights
        (SubclassedModel, 42, 2),
    ],
)
def test_a_step_of_its_own_is_traced_no_more_often_than_by_keras(make, num_rows, most):
    of_keras, expected, weights = trained(keras.Model.fit, make, num_rows)
    num_traces, history, found = trained(tfaccel.fit, make, num_rows)
    assert num_traces == most <= of_keras
    assert history == expected and history.keys() == {"own", "kernel"}
    for one, other in zip(found, weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("own", [False, True])
def test_a_loss_scale_that_changes_is_that_of_the_loss_and_of_its_gradients(own):
    """Until a `LossScaleOptimizer` is built, it scales the loss by a constant; the first step builds it."""

    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
                scaled = self.optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    def weights(fit, scale):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((4,))
        model = (Own if own else keras.Model)(inputs, keras.layers.Dense(1)(inputs))
        inner = keras.optimizers.SGD(0.01)
        optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=scale, dynamic_growth_steps=2)
        model.compile(optimizer, "mse")
        x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
        fit(model, x, x[:, :1], batch_size=8, epochs=2, verbose=0, shuffle=False)
        return [float(optimizer.dynamic_scale), *model.get_weights()]

    for scale in (4.0, 2.0**127):  # grows; overflows, and is divided by two until it does not
        expected = weights(keras.Model.fit, scale)
        assert expected[0] != scale
        for one, other in zip(weights(tfaccel.fit, scale), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


class PerRow(Counted, keras.Model):
    """Returns a log with a value for each row, whose number is not known."""

    def train_step(self, data):
        super().train_step(data)
        return {"rows": tf.reduce_mean(data[0], -1)}


def test_logs_of_unknown_shape_are_still_reported():
    inputs = keras.Input((4,))
    model = PerRow(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    x = np.arange(72.0, dtype="float32").reshape(18, 4)
    history = tfaccel.fit(model, x, x[:, :1], batch_size=8, verbose=0, shuffle=False).history
    np.testing.assert_allclose(history["rows"][0], x[16:].mean(-1))


class Traced(keras.layers.Layer):
    num_traces = 0

    def call(self, x):
        self.num_traces += 1
        return x


def test_a_smaller_last_batch_is_not_traced_again():
    x = np.random.default_rng(0).random((92, 4), "float32")
    found = []
    for fit in (keras.Model.fit, tfaccel.fit):
        keras.utils.set_random_seed(0)
        layer = Traced()
        model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"], jit_compile=False)
        layer.num_traces = 0
        history = fit(model, x, x[:, :1], batch_size=8, epochs=3, verbose=0).history
        found.append((history, [one.tolist() for one in model.get_weights()]))
        num_traces = layer.num_traces
    assert num_traces == 1
    assert found[0] == found[1]
