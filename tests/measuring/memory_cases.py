"""Workloads for `find_batch_size`."""

import keras
import numpy as np
import tensorflow as tf

import tfaccel

NUM_EXAMPLES = 40_000


def build_model() -> keras.Model:
    layers = [keras.layers.Dense(1024, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def workload() -> tfaccel.Workload:
    x = np.zeros((NUM_EXAMPLES, 16), "float32")
    return tfaccel.Workload.of(build_model, x, np.zeros(NUM_EXAMPLES, "int32"), batch_size=2048)


def few_examples() -> tfaccel.Workload:
    return tfaccel.Workload.of(build_model, np.zeros((96, 16), "float32"), np.zeros(96, "int32"), batch_size=16)


def fixed_batches() -> tfaccel.Workload:
    rows = tf.data.Dataset.from_tensor_slices((np.zeros((96, 16), "float32"), np.zeros(96, "int32")))
    return tfaccel.Workload.of(build_model, rows.batch(32))
