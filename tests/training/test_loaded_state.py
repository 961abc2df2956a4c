"""A model that several replicas train is saved and loaded by Keras, and trained on, as one device would."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel.training.fit import fit

pytestmark = pytest.mark.usefixtures("logical_devices")

OPTIONS = {"batch_size": 8, "shuffle": False, "verbose": 0}
X = np.random.default_rng(0).normal(size=(45, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def several():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def accumulating():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4), "mse")
    return model


def weights(model):
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


def trained_in_two_parts(strategy, file):
    """Six batches, of which two wait for an update; then as many more by the model, and by what a file has of it."""
    with strategy.scope():
        model = accumulating()
    fit(model, X, Y, **OPTIONS)
    model.save(file)
    with strategy.scope():
        loaded = keras.models.load_model(file)
    for one in (model, loaded):
        fit(one, X, Y, epochs=2, **OPTIONS)
    return weights(model), weights(loaded)


def test_gradients_that_wait_for_an_update_are_saved_and_count_once(tmp_path):
    expected, _ = trained_in_two_parts(tf.distribute.get_strategy(), tmp_path / "one.keras")
    for found in trained_in_two_parts(several(), tmp_path / "two.keras"):
        np.testing.assert_allclose(found, expected, atol=1e-6)


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            raise KeyboardInterrupt


def test_backup_within_an_update_is_restored(tmp_path):
    for end in (Stop(), keras.callbacks.Callback()):
        with several().scope():
            model = accumulating()
        backup = keras.callbacks.BackupAndRestore(str(tmp_path), save_freq=3)
        try:
            fit(model, X[:32], Y[:32], callbacks=[backup, end], **OPTIONS)
        except KeyboardInterrupt:
            assert model.optimizer.iterations == 1
    fit(model, X, Y, **OPTIONS)
    expected = accumulating()
    fit(expected, X[:24], Y[:24], **OPTIONS)  # what the backup holds
    fit(expected, X[:32], Y[:32], **OPTIONS)
    fit(expected, X, Y, **OPTIONS)
    np.testing.assert_allclose(weights(model), weights(expected), atol=1e-6)
