"""A custom step that takes the gradient of values by row: that of their sum, through whatever replicas exchange."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel.ops import all_gather_rows, mean_over_replicas
from tfaccel.training.fit import fit

pytestmark = pytest.mark.usefixtures("logical_devices")

X = np.random.default_rng(0).normal(size=(13, 4)).astype("float32")  # batches of 8 and 5: three rows and two
Y = np.sin(X.sum(axis=1, keepdims=True))


def of_rows(y, z):
    return keras.losses.MeanAbsoluteError(reduction=None)(y, z)


def beside_all_rows(y, z):
    """For each row its distance from the others, as in a contrastive loss."""
    return tf.reduce_mean(tf.square(z - tf.transpose(all_gather_rows(z))), axis=1) + of_rows(y, z)


def of_all_rows(y, z):
    return tf.square(all_gather_rows(z) - all_gather_rows(y))[:, 0]


def centered(y, z):
    return tf.square(y - z + mean_over_replicas(tf.reduce_mean(z)))


LOSSES = {
    "statistics": of_rows,
    "two": lambda y, z: [of_rows(y, z), tf.square(y - z)],
    "gathered": beside_all_rows,
    "all rows": of_all_rows,
    "mean": centered,
}


class Stepping(keras.Model):
    def __init__(self, loss):
        super().__init__()
        synchronized = keras.layers.BatchNormalization(synchronized=True)
        layers = [keras.layers.Dense(5), synchronized, keras.layers.Activation("tanh"), keras.layers.Dense(1)]
        self.net, self.of_rows = keras.Sequential([keras.Input((4,)), *layers]), loss

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.of_rows(y, self.net(x, training=True))
        variables = self.net.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"one": tf.constant(1.0)}


def trained(loss, rows, strategy=None):
    keras.utils.set_random_seed(0)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = Stepping(loss)
        model.compile(keras.optimizers.SGD(0.01))
    train = fit if strategy else keras.Model.fit
    train(model, X[:rows], Y[:rows], batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.net.get_weights()


@pytest.mark.parametrize("rows", [13, 9])  # one row leaves a replica without any
@pytest.mark.parametrize("name", LOSSES)
def test_replicas_apply_the_gradient_of_one_device(name, rows):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for many, one in zip(trained(LOSSES[name], rows, strategy), trained(LOSSES[name], rows), strict=True):
        np.testing.assert_allclose(many, one, rtol=1e-5, atol=1e-6)
