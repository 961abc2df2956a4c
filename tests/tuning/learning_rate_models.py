"""Small models and data for the learning-rate range test."""

import keras
import numpy as np

from tfaccel.options import LearningRateTest

X = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
Y = X @ np.array([[1.0], [-2.0], [0.5], [0.0]], "float32")
SHORT = LearningRateTest(num_steps=16, max_learning_rate=0.01, divergence_factor=None)


def build_model():
    layers = [keras.layers.Dense(6), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    return keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1, dtype="float32")])


def small_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])


def linear_model(optimizer="sgd", loss="mse"):
    model = small_model()
    model.compile(optimizer, loss)
    return model
