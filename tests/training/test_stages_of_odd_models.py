"""Pipeline stages of models whose inputs, states or numbers are unusual: to the last bit what one device gives."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from stage_models import difference, trained

pytestmark = pytest.mark.usefixtures("logical_devices")
LAYERS = keras.layers


class Complex(LAYERS.Layer):
    """Turns numbers by 45 degrees in the complex plane."""

    def call(self, x):
        return tf.cast(x, tf.complex64) * tf.complex(0.5, 0.5)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, "complex64")


class Parts(LAYERS.Layer):
    """Weighs the real parts, and adds the imaginary ones."""

    def __init__(self):
        super().__init__(autocast=False)

    def build(self, input_shape):
        self.factors = self.add_weight(shape=input_shape[1:], initializer="ones")

    def call(self, x):
        return tf.math.real(x) * self.factors + tf.math.imag(x)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, "float32")


def complex_numbers():
    x = keras.Input((12,))
    return keras.Model(x, LAYERS.Dense(4)(Parts()(Complex()(LAYERS.Dense(8)(x)))))


def stateful():
    states = {"stateful": True, "return_sequences": True}
    layers = [LAYERS.LSTM(4, **states), LAYERS.Dense(4), LAYERS.GRU(4, **states), LAYERS.Flatten(), LAYERS.Dense(4)]
    return keras.Sequential([keras.Input(batch_shape=(4, 6, 3)), *layers])


class Positions(LAYERS.Layer):
    """Adds a vector for each of at most 8 positions, as text models do."""

    def build(self, input_shape):
        self.table = self.add_weight(shape=(8, input_shape[-1]))

    def call(self, x):
        return x + self.table[: keras.ops.shape(x)[1]]

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, "float32")


def short_texts():
    ids = keras.Input((None,), dtype="int32")
    h = Positions()(LAYERS.Embedding(20, 8)(ids))
    return keras.Model(ids, LAYERS.Dense(4)(LAYERS.GlobalAveragePooling1D()(LAYERS.Dense(8)(h))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "family", "stages"), [(complex_numbers, "mlp", 3), (stateful, "lstm", 2), (short_texts, "transformer", 2)]
)
def test_stages_give_what_one_device_gives(make, family, stages):
    arguments = {"epochs": 1, "shuffle": False}
    _, one, history = trained(family, 1, 2, make=make, arguments=arguments)
    _, several, of_stages = trained(family, stages, 2, make=make, arguments=arguments)
    assert difference(one, several) == 0.0
    assert of_stages == history
    assert np.isfinite(history["loss"]).all()
