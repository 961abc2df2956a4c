"""Models for tests that compare several replicas with one device, and functions to train and compare them."""

import contextlib

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from tfaccel.ops import all_gather_rows
from tfaccel.training.fit import fit

X = np.random.default_rng(0).normal(size=(21, 6)).astype("float32")
Y = np.random.default_rng(1).integers(0, 3, (21, 1)).astype("float32")


def scope_of(num_replicas):
    """The scope of a MirroredStrategy with `num_replicas` replicas; without a strategy if 0."""
    if not num_replicas:
        return contextlib.nullcontext()
    return tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(num_replicas)]).scope()


def trained(make, num_replicas, *data, batch_size=8, epochs=2, **options):
    """The history and trained weights of a model: with 0 replicas by Keras on one device, otherwise by tfaccel."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    with scope_of(num_replicas):
        model = make()
    data = data or (X, Y)
    if isinstance(data[0], tf.data.Dataset):
        batch_size = None
    run = fit if num_replicas else keras.Model.fit
    history = run(model, *data, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0, **options).history
    return history, [variable.numpy() for variable in model.trainable_variables]


def assert_equal(found, wanted, rel=1e-5):
    """Compares two results of `trained`."""
    (history, weights), (wanted_history, wanted_weights) = found, wanted
    assert history.keys() == wanted_history.keys()
    for name, values in wanted_history.items():
        np.testing.assert_allclose(history[name], values, rtol=rel, err_msg=name)
    for one, other in zip(weights, wanted_weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=rel, atol=rel * max(np.abs(other).max(), 1e-2))


def batches(*arrays, batch_size=8):
    """A dataset whose batches have an unknown number of rows."""
    return tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0]).batch(batch_size)


def sequential(*layers, loss="mse", metrics=(), units=1, optimizer=None, jit_compile=False):
    """A function that creates a compiled sequential model; `layers` and `metrics` are functions that create them."""

    def make():
        model = keras.Sequential([keras.Input((6,)), *(layer() for layer in layers), keras.layers.Dense(units)])
        model.compile(
            optimizer() if optimizer else keras.optimizers.Adam(0.02),
            loss,
            metrics=[metric() for metric in metrics],
            jit_compile=jit_compile,
        )
        return model

    return make


def contrastive(labels, embeddings, gather=False):
    """A contrastive loss: one value per row, which is low if the row is similar to the rows of its class."""
    if gather:
        labels, embeddings = all_gather_rows(labels), all_gather_rows(embeddings)
    unit = tf.math.l2_normalize(embeddings, axis=1)
    same = tf.cast(tf.equal(labels[:, None, 0], labels[None, :, 0]), tf.float32)
    same /= tf.reduce_sum(same, axis=1, keepdims=True)
    return tf.nn.softmax_cross_entropy_with_logits(same, 3 * tf.matmul(unit, unit, transpose_b=True))


class OwnStep(keras.Model):
    """A model with a custom `train_step`, whose loss is logged under another name than its metric's."""

    def __init__(self, loss_of_rows, optimizer=None):
        super().__init__()
        self.dense = keras.layers.Dense(5)
        self.tracker = keras.metrics.Mean(name="total")
        self.loss_of_rows = loss_of_rows
        self.compile(optimizer=optimizer or keras.optimizers.Adam(0.02))

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of_rows(y, self.dense(x))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}


class Centred(keras.layers.Layer):
    """A layer that couples the rows of a batch."""

    def call(self, x):
        return x - ops.mean(x, axis=0, keepdims=True)


class Maximum(keras.metrics.Metric):
    """A metric whose state is not a sum."""

    def __init__(self, name="maximum"):
        super().__init__(name=name)
        self.largest = self.add_variable((), "zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        self.largest.assign(ops.maximum(self.largest, ops.max(ops.abs(y_pred))))

    def result(self):
        return self.largest * 1.0


class MergedMaximum(Maximum):
    """The same metric with a `merge_state` that takes the maximum."""

    def merge_state(self, metrics):
        for metric in metrics:
            self.largest.assign(ops.maximum(self.largest, metric.largest))
