"""What a custom step computes from the results of metrics is what one device computes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_models import assert_equal, trained

from tfaccel.errors import CoupledRowsError, PlanError

pytestmark = pytest.mark.usefixtures("logical_devices")


class LargestError(keras.metrics.Metric):
    """A running maximum, which is no sum over the rows."""

    def __init__(self):
        super().__init__(name="largest")
        self.largest = self.add_weight(shape=(), initializer="zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(keras.ops.maximum(self.largest, keras.ops.max(keras.ops.abs(y_true - y_pred))))

    def result(self):
        return self.largest


class MergedLargest(LargestError):
    def merge_state(self, metrics):
        for metric in metrics:
            self.largest.assign(keras.ops.maximum(self.largest, metric.largest))


class OwnLogs(keras.Model):
    """Its steps return `logs`; its loss is weighted by `weight`."""

    second = keras.metrics.MeanAbsoluteError

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.tracker, self.other = keras.metrics.Mean(name="tracker"), self.second()
        self.best = self.add_weight(shape=(), initializer="zeros", trainable=False, name="best")
        self(np.zeros((1, 6), "float32"))
        self.compile(keras.optimizers.SGD(0.05))

    metrics = property(lambda self: [self.tracker, self.other])

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(x)
            loss = tf.reduce_mean((y - outputs) ** 2) * self.weight()
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return self.updated(loss, y, outputs)

    def test_step(self, data):
        x, y = data
        outputs = self(x)
        return self.updated(tf.reduce_mean((y - outputs) ** 2), y, outputs)

    def updated(self, loss, y, outputs):
        self.tracker.update_state(loss)
        self.other.update_state(y, outputs)
        return self.logs()

    def weight(self):
        return 1.0

    def logs(self):
        return {metric.name: metric.result() for metric in self.metrics}


class Functions(OwnLogs):
    def logs(self):
        loss = self.tracker.result()
        return {"perplexity": tf.exp(loss), "ratio": loss / self.other.result(), **super().logs()}


class AnotherName(OwnLogs):
    def logs(self):
        return {"loss": self.tracker.result()}


class WeighsByAResult(OwnLogs):
    def weight(self):
        return 1.0 + self.tracker.result()


class KeepsTheBest(OwnLogs):
    def logs(self):
        self.best.assign(tf.maximum(self.best, self.tracker.result()))
        return {**super().logs(), "best": tf.convert_to_tensor(self.best)}


class TwiceTheLargest(OwnLogs):
    second = LargestError

    def logs(self):
        return {"twice": 2 * self.other.result(), **super().logs()}


class TwiceTheMergedLargest(TwiceTheLargest):
    second = MergedLargest


@pytest.mark.parametrize(
    "make", [Functions, AnotherName, WeighsByAResult, KeepsTheBest, TwiceTheLargest, TwiceTheMergedLargest]
)
def test_results_in_a_step_are_those_of_all_replicas(make):
    """The last batch has 5 rows, the last one of validation has a single one: the second replica borrows it."""
    x, y = (np.random.default_rng(seed).normal(size=(21, size)).astype("float32") for seed, size in ((0, 6), (1, 1)))
    options = {"validation_data": (x[:9], y[:9]), "validation_batch_size": 8}
    assert_equal(*(trained(make, num_replicas, x, y, **options) for num_replicas in (2, 0)))


class ReadsAState(OwnLogs):
    """The states of a metric are a replica's; batches of even shares do not show it."""

    def logs(self):
        return {"own": self.tracker.total / self.tracker.count}


class AsksInACondition(OwnLogs):
    def logs(self):
        return {"late": tf.cond(self.optimizer.iterations > 1, lambda: 2 * self.tracker.result(), lambda: 0.0)}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            ReadsAState,
            CoupledRowsError,
            "Log 'own' of ReadsAState.train_step is neither a metric's result nor a mean .* on 5 rows",
        ),
        (AsksInACondition, PlanError, "sums over the replicas, inside a condition"),
    ],
)
def test_states_and_results_within_conditions_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        trained(make, 2)
