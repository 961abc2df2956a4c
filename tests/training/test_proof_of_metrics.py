"""What comparing a step of several replicas with one device's finds of metrics, logs and losses."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from proof_models import OwnModel, X, Y, fitted
from replica_models import scope_of

from tfaccel.errors import CoupledRowsError, PlanError
from tfaccel.training.fit import fit

pytestmark = pytest.mark.usefixtures("logical_devices")


class NotesTheLargest(keras.metrics.MeanAbsoluteError):
    """A metric that also assigns a weight of the model."""

    def __init__(self, largest):
        super().__init__()
        self.largest = largest

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(keras.ops.max(y_pred))
        return super().update_state(y_true, y_pred, sample_weight)


class IsNotedByAMetric(OwnModel):
    def keep(self):
        self.largest = self.add_weight(shape=(), initializer="zeros", trainable=False, name="largest")
        self.metric = NotesTheLargest(self.largest)

    def after(self, x):
        self.metric.update_state(x[:, :3], self.net(x))


class UpdatesAMeanByNumbers(OwnModel):
    """From the second step on, a loss has a part that is not reduced, which the comparison decides how to take."""

    def keep(self):
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False)
        self.tracker = keras.metrics.Mean(name="tracked")

    def get_loss(self, x, y):
        of_rows = keras.losses.MeanSquaredError(reduction=None)(y, self.net(0.5 * x, training=True))
        return super().get_loss(x, y) + tf.minimum(self.steps.value, 1.0) * tf.reduce_mean(of_rows)

    def train_step(self, data):
        loss = super().train_step(data)["loss"]
        self.steps.assign_add(1.0)
        self.tracker.update_state([loss])  # a list of one number, as one step makes it
        return {"loss": loss, "tracked": self.tracker.result()}


def test_what_was_tried_in_vain_leaves_metrics_as_they_were():
    logs = []
    for num_replicas in (0, 2):
        keras.utils.set_random_seed(0)
        with scope_of(num_replicas):
            model = UpdatesAMeanByNumbers()
        fit_of = keras.Model.fit if num_replicas == 0 else fit
        logs.append(fit_of(model, X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history)
    for name, values in logs[0].items():
        np.testing.assert_allclose(logs[1][name], values, rtol=1e-5)


class LargestOfMany(keras.metrics.Metric):
    """Its result is 0 until it has seen more rows than a batch has."""

    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(initializer="zeros")
        self.rows = self.add_weight(initializer="zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(y - y_pred))))
        self.rows.assign_add(keras.ops.cast(keras.ops.shape(y)[0], "float32"))

    def result(self):
        return keras.ops.where(self.rows > 8, self.value, 0.0)


def test_a_metric_is_compared_by_its_state():
    found = []
    for num_replicas in (0, 2):
        keras.utils.set_random_seed(0)
        with scope_of(num_replicas):
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
            model.compile(keras.optimizers.SGD(0.01), "mse", metrics=[LargestOfMany()])
        run = keras.Model.fit if num_replicas == 0 else fit
        found.append(run(model, X, Y, batch_size=8, shuffle=False, verbose=0).history["largest"])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_weight_that_a_metric_assigns_is_that_of_all_rows():
    keras.utils.set_random_seed(0)
    alone = IsNotedByAMetric()
    keras.Model.fit(alone, X, Y, batch_size=8, shuffle=False, verbose=0)
    assert float(fitted(IsNotedByAMetric).largest.value) == pytest.approx(float(alone.largest.value), rel=1e-5)


class LogsEachRow(OwnModel):
    def train_step(self, data):
        return {**super().train_step(data), "each": tf.reduce_mean(data[0], axis=1)}


class TrainsATensorFlowVariable(OwnModel):
    def keep(self):
        self.scale = tf.Variable(1.0)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((data[1] - self.scale * self.net(data[0])) ** 2)
        self.optimizer.apply_gradients([(tape.gradient(loss, self.scale), self.scale)])
        return {"loss": loss}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            LogsEachRow,
            CoupledRowsError,
            r"Log 'each' of LogsEachRow\.train_step is neither a metric's result nor a mean",
        ),
        (TrainsATensorFlowVariable, PlanError, r"An optimizer is given a tf\.Variable, which 2 replicas cannot update"),
    ],
)
def test_what_replicas_cannot_do_alike_is_named(make, error, message):
    with pytest.raises(error, match=message):
        fitted(make)


def test_one_device_trains_a_tensorflow_variable():
    model = TrainsATensorFlowVariable()
    fit(model, X, Y, batch_size=8, verbose=0)
    assert float(model.scale) != 1.0


def test_nested_losses_train_on_several_replicas():
    def make():
        inputs = keras.Input((4,))
        model = keras.Model(inputs, (keras.layers.Dense(3)(inputs), {"z": keras.layers.Dense(1)(inputs)}))
        model.compile("sgd", ("mse", {"z": "mae"}))
        return model

    with scope_of(2):
        model = make()
    fit(model, X, (Y, {"z": Y[:, :1]}), batch_size=8, verbose=0)
