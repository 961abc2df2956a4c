"""Methods that are set on a model, a class of Keras, an optimizer or a callback, instead of defined in a subclass."""

import contextlib
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_models import X, Y, scope_of

from tfaccel.training.fit import fit
from tfaccel.training.steps.windows import needs_each_batch

pytestmark = pytest.mark.usefixtures("logical_devices")


def train_step(self, data):
    x, y = data
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.abs(self(x, training=True) - y))
    gradients = tape.gradient(loss, self.trainable_variables)
    self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
    return {"own": loss}


def test_step(self, data):
    return {"own": tf.reduce_mean(self(data[0], training=False))}


test_step.__test__ = False


def half_updates(optimizer):
    apply = optimizer.apply
    optimizer.apply = lambda gradients, variables=None: apply([0.5 * one for one in gradients], variables)


@contextlib.contextmanager
def replaced(kind, model):
    with pytest.MonkeyPatch.context() as patch:
        if kind == "on the instance":
            model.train_step = types.MethodType(train_step, model)
            model.test_step = types.MethodType(test_step, model)
        elif kind == "on keras.Model":
            patch.setattr(keras.Model, "train_step", train_step)
            patch.setattr(keras.Model, "test_step", test_step)
        elif kind == "metrics on the instance":
            model.compute_metrics = lambda x, y, y_pred, sample_weight=None: {"own": tf.reduce_mean(y_pred)}
        else:
            half_updates(model.optimizer)
        yield


def history(kind, num_replicas, train):
    keras.utils.set_random_seed(0)
    with scope_of(num_replicas):
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    options = {"epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0, "validation_data": (X[:16], Y[:16])}
    with replaced(kind, model):
        logs = train(model, X, Y, **options).history
    return logs, model.get_weights()


@pytest.mark.parametrize("kind", ["on the instance", "on keras.Model", "metrics on the instance", "of the optimizer"])
def test_methods_replaced_without_a_subclass_run(kind):
    wanted, weights = history(kind, 0, keras.Model.fit)
    assert ("own" in wanted) == (kind != "of the optimizer")
    for num_replicas in (0, 2):
        logs, own_weights = history(kind, num_replicas, fit)
        assert sorted(logs) == sorted(wanted)
        for name, values in wanted.items():
            assert logs[name] == pytest.approx(values, rel=1e-5), name
        for one, other in zip(own_weights, weights, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_batch_hook_set_on_the_class_of_all_callbacks_is_called_for_each_batch(monkeypatch):
    callback = keras.callbacks.Callback()
    assert not needs_each_batch(callback, "train")
    monkeypatch.setattr(keras.callbacks.Callback, "on_train_batch_end", lambda self, batch, logs=None: None)
    assert needs_each_batch(callback, "train")
