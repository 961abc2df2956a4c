"""A model with a step of its own, for tests of what comparing it with one device's finds."""

import keras
import numpy as np
import tensorflow as tf
from replica_models import scope_of

from tfaccel.training.fit import fit

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
Y = np.random.default_rng(1).normal(size=(16, 3)).astype("float32")


class OwnModel(keras.Model):
    """A model whose step also does `after`."""

    optimizer_of_step = staticmethod(lambda: keras.optimizers.SGD(0.01))

    def __init__(self):
        super().__init__()
        self.net = self.layers_of_net()
        self.keep()
        self.compile(self.optimizer_of_step(), "mse")

    def layers_of_net(self):
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])

    def keep(self):
        pass

    def call(self, x, training=False):
        return self.net(x, training=training)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.get_loss(x, y)
        variables = self.net.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.after(x)
        self.metrics[0].update_state(loss)
        return {"loss": self.metrics[0].result()}

    def get_loss(self, x, y):
        return tf.reduce_mean((y - self.net(x, training=True)) ** 2)

    def after(self, x):
        pass


def fitted(make, **options):
    keras.utils.set_random_seed(0)
    with scope_of(2):
        model = make()
        model(X[:1])
    fit(model, X, Y, batch_size=8, shuffle=False, verbose=0, **options)
    return model
