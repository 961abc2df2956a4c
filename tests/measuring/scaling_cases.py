"""Workloads for `estimate_scaling` and `compare_devices`."""

import keras
import numpy as np

import tfaccel

X = np.random.default_rng(0).normal(size=(256, 16)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")


def build_model() -> keras.Model:
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(2)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


class UntilSmall(keras.layers.Layer):
    """A loop whose length depends on the data."""

    def call(self, inputs):
        import tensorflow as tf

        half = tf.eye(2, dtype=inputs.dtype) / 2
        return tf.while_loop(lambda value: tf.reduce_max(value) > 1.0, lambda value: (value @ half,), [inputs])[0]


def build_uncounted() -> keras.Model:
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(2), UntilSmall()])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def never_builds() -> keras.Model:
    raise ValueError("no such file: vocabulary.txt")


def workload(build=build_model) -> tfaccel.Workload:
    return tfaccel.Workload.of(build, X, Y, batch_size=32)


def uncounted() -> tfaccel.Workload:
    return workload(build_uncounted)


def failing() -> tfaccel.Workload:
    return tfaccel.Workload.of(never_builds, X, Y, batch_size=32, loss="mse", optimizer="sgd")
