"""Steps whose Python code draws from `random` and `numpy.random`: the numbers are constants, those of one device."""

import random
import threading
from random import random as random_by_name

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_models import assert_equal, trained

from tfaccel.training.steps.python_numbers import PythonNumbers, numbers_not_used_up, same_numbers_on_replicas

pytestmark = pytest.mark.usefixtures("logical_devices")


class ScalesItsGradients(keras.Sequential):
    """A step with a number of NumPy's, and one of Python's in each update."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self(x, training=True) - y) ** 2) * np.random.uniform(0.5, 1.5)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply([random.uniform(0.5, 1.5) * one for one in gradients], self.trainable_variables)
        return {"loss": loss}


class ChoosesALayer(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.layers = [keras.layers.Dense(3) for _ in range(5)]

    def build(self, shape):
        for layer in self.layers:
            layer.build(shape)

    def call(self, x):
        chosen = random.choice(self.layers)
        return chosen(x) + 0.1 * sum(layer(x) for layer in self.layers)


class DrawsItsRate(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 0.1 * random.random()

    def get_config(self):
        return {}


def made(kind=keras.Sequential, layer=lambda: keras.layers.Dense(3), rate=0.05, loss="mse"):
    def make():
        model = kind([keras.Input((6,)), layer(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(rate if isinstance(rate, float) else rate()), loss)
        return model

    return make


@pytest.mark.parametrize(
    "make",
    [
        made(ScalesItsGradients),
        made(layer=ChoosesALayer),
        made(layer=ChoosesALayer, loss=keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")),
        made(rate=DrawsItsRate),
    ],
)
def test_all_replicas_and_graphs_draw_what_one_device_draws_once(make):
    wanted, number = trained(make, 0), random.random()
    for num_replicas in (1, 2):
        assert_equal(trained(make, num_replicas), wanted)
        assert random.random() == number


def test_threads_that_prepare_data_see_no_number_again():
    drawn = []

    def draw():
        drawn.extend((random.random(), np.random.random()) for _ in range(3))

    for block in (numbers_not_used_up, PythonNumbers().drawn_again):
        with block():
            thread = threading.Thread(target=draw)
            thread.start()
            thread.join()
            random.random()
        draw()
    assert len(set(drawn)) == 12


def test_numbers_of_a_trace_that_keras_does_not_make_are_drawn_again():
    random.seed(0)
    with numbers_not_used_up():
        traced = random.random(), random.random(), random_by_name()
    assert random_by_name() == traced[2] == traced[0]
    assert random.random() == traced[1]


def test_without_a_trace_replicas_draw_as_they_would():
    assert same_numbers_on_replicas(random.random)() != same_numbers_on_replicas(random.random)()
