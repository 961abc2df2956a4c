"""Steps of which the whole, or a part, is a `tf.function`, on several replicas."""

import keras
import pytest
import tensorflow as tf
from replica_models import X, Y, assert_equal, scope_of

from tfaccel.training.fit import fit

pytestmark = pytest.mark.usefixtures("logical_devices")


def gradients_of(model, data):
    with tf.GradientTape() as tape:
        loss = model.compute_loss(data[0], data[1], model(data[0], training=True))
    return loss, tape.gradient(loss, model.trainable_variables)


def apply(model, gradients):
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def train_step(self, data):
    loss, gradients = gradients_of(self, data)
    apply(self, gradients)
    return {"own": loss}


class Whole(keras.Model):
    train_step = tf.function(train_step)


class Compiled(keras.Model):
    train_step = tf.function(train_step, jit_compile=True)


class Parts(keras.Model):
    gradients_of = tf.function(gradients_of, jit_compile=True)
    apply = tf.function(apply)

    def train_step(self, data):
        loss, gradients = self.gradients_of(data)
        self.apply(gradients)
        return {"own": loss}


class Decides(keras.Model):
    """A condition that only AutoGraph can trace."""

    @tf.function
    def train_step(self, data):
        loss, gradients = gradients_of(self, data)
        if self.optimizer.iterations.value < 3:
            gradients = [0.5 * one for one in gradients]
        apply(self, gradients)
        return {"own": loss}


class Evaluates(keras.Model):
    @tf.function
    def test_step(self, data):
        return {"own": self.compute_loss(data[0], data[1], self(data[0], training=False))}


def compiled(kind):
    inputs = keras.Input((6,))
    model = (kind or keras.Model)(inputs, keras.layers.Dense(1)(keras.layers.Dense(4)(inputs)))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), keras.losses.MeanSquaredError())
    if kind is None:
        model.train_step = tf.function(model.train_step)
    return model


def trained(kind, num_replicas, by):
    keras.utils.set_random_seed(0)
    with scope_of(num_replicas):
        model = compiled(kind)
    data = {"validation_data": (X[:10], Y[:10]), "batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    sample_weight = abs(X[:, 0])  # the loss has a denominator over all replicas
    return by(model, X, Y, sample_weight=sample_weight, **data).history, model.get_weights()


@pytest.mark.parametrize("kind", [Whole, Compiled, Parts, Decides, Evaluates, None])
def test_a_function_in_a_step_trains_as_with_keras(kind, caplog):
    wanted = trained(kind, 0, keras.Model.fit)
    assert_equal(trained(kind, 2, fit), wanted)
    assert "could not be" not in caplog.text
