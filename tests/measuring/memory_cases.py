"""Workloads for `find_batch_size`."""

import os
import time
from pathlib import Path

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


class Disturbed(keras.layers.Layer):
    """A batch takes 20 ms. The process of 16 rows dies once that of 32 runs; later ones need memory from call 8 on."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0
        self.held: list[np.ndarray] = []

    def call(self, inputs):
        outputs = tf.py_function(self.disturb, [inputs], inputs.dtype)
        outputs.set_shape(inputs.shape)
        return tf.stop_gradient(outputs)

    def disturb(self, rows):
        begun = Path(os.environ["TFACCEL_CACHE"], "begun")
        self.num_calls += 1
        if len(rows) == 32:
            begun.touch()
        if len(rows) == 16 and begun.exists():
            os._exit(9)
        if len(rows) > 32 and self.num_calls == 8:
            self.held.append(np.ones(1_500_000_000, "uint8"))
        time.sleep(0.02)
        return rows


def disturbed() -> tfaccel.Workload:
    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((16,)), Disturbed(), keras.layers.Dense(2)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    return tfaccel.Workload.of(build, np.zeros((512, 16), "float32"), np.zeros(512, "int32"), batch_size=16)
