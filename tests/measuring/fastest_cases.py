"""Workloads for `find_fastest` that misbehave under some plans."""

import functools
import os
import signal
import time

import keras
import numpy as np
import tensorflow as tf

import tfaccel

rng = np.random.default_rng(0)
X = rng.normal(size=(256, 16)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int32")


def build_model() -> keras.Model:
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(2)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def dies_or_hangs() -> keras.Model:
    """Is killed with one operation at a time, and hangs with one thread for each."""
    if tf.config.threading.get_inter_op_parallelism_threads() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if tf.config.threading.get_intra_op_parallelism_threads() == 1:
        time.sleep(600)
    return build_model()


def computes_otherwise() -> keras.Model:
    """Computes something else with one operation at a time, and NaN with one thread for each."""
    model = build_model()
    if tf.config.threading.get_inter_op_parallelism_threads() == 1:
        model.layers[-1].bias.assign([9.0, -9.0])
    if tf.config.threading.get_intra_op_parallelism_threads() == 1:
        model.layers[-1].bias.assign([float("nan"), 0.0])
    return model


@keras.saving.register_keras_serializable()
class Later(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that becomes NaN after 40 steps, or ends the process then."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        after = tf.cast(step, tf.float32) > 40.0
        if self.what == "nan":
            return tf.where(after, float("nan"), 1e-3)

        def end() -> float:
            os.kill(os.getpid(), signal.SIGKILL)
            return 0.0

        return tf.cond(after, lambda: tf.py_function(end, [], tf.float32), lambda: tf.constant(1e-3))

    def get_config(self) -> dict[str, str]:
        return {"what": self.what}


def fails_later(what: str, *, with_one_operation: bool) -> keras.Model:
    is_one = tf.config.threading.get_inter_op_parallelism_threads() == 1
    model = build_model()
    rate = Later(what) if is_one == with_one_operation else 1e-3
    model.compile(keras.optimizers.Adam(rate), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def diverging() -> tfaccel.Workload:
    """Computes NaN, but only after the steps whose losses are compared, with one operation at a time."""
    return workload(functools.partial(fails_later, "nan", with_one_operation=True))


def dying_later() -> tfaccel.Workload:
    """Is killed while it is timed, but not with one operation at a time."""
    return workload(functools.partial(fails_later, "kill", with_one_operation=False))


@keras.saving.register_keras_serializable()
class Sleeping(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that takes six seconds, and with oneDNN three."""

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        def slept() -> float:
            time.sleep(3.0 if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "1" else 6.0)
            return 1e-3

        return tf.py_function(slept, [], tf.float32)

    def get_config(self) -> dict[str, str]:
        return {}


def slow_model() -> keras.Model:
    model = build_model()
    model.compile(keras.optimizers.Adam(Sleeping()), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def slow() -> tfaccel.Workload:
    """So slow that a minute allows two plans."""
    return workload(slow_model)


def never_builds() -> keras.Model:
    raise ValueError("no such file: vocabulary.txt")


def workload(build=build_model) -> tfaccel.Workload:
    return tfaccel.Workload.of(build, X, Y, batch_size=32)


def dying() -> tfaccel.Workload:
    return workload(dies_or_hangs)


def wrong() -> tfaccel.Workload:
    return workload(computes_otherwise)


def failing() -> tfaccel.Workload:
    return tfaccel.Workload.of(never_builds, X, Y, batch_size=32, loss="mse", optimizer="sgd")


def normalized() -> tfaccel.Workload:
    """A model whose results depend on the size of a micro-batch."""

    def build() -> keras.Model:
        layers = [keras.Input((16,)), keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    return workload(build)


def deep() -> tfaccel.Workload:
    """A model whose activations take most of the memory."""

    def build() -> keras.Model:
        hidden = [keras.layers.Dense(256, activation="gelu") for _ in range(12)]
        model = keras.Sequential([keras.Input((16,)), *hidden, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    x = np.zeros((8192, 16), "float32")
    return tfaccel.Workload.of(build, x, x[:, :1], batch_size=4096)


def words() -> tfaccel.Workload:
    """A language model whose logits take most of the memory."""

    def build() -> keras.Model:
        layers = [keras.Input((128,)), keras.layers.Embedding(8192, 8), keras.layers.Dense(8192)]
        model = keras.Sequential(layers)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model

    x = np.zeros((64, 128), "int32")
    return tfaccel.Workload.of(build, x, x, batch_size=32)
