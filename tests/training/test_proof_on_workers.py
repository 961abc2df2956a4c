"""Comparing a step on several workers: all ask the same of the others, and one device asks nothing."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel.data.feeds import IteratorBatches
from tfaccel.training.proof.detached_step import State
from tfaccel.training.proof.differences import MetricDifference, Tolerance
from tfaccel.training.proof.proof import Proof, agreed, agreed_way
from tfaccel.training.steps.one_replica import OneReplica
from tfaccel.training.steps.replicas import Replicas

pytestmark = pytest.mark.usefixtures("logical_devices")


class Count(keras.metrics.Metric):
    """Counts rows, and returns its variable."""

    def __init__(self):
        super().__init__(name="count")
        self.rows = self.add_weight(shape=(), initializer="zeros", name="rows")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.rows.assign_add(keras.ops.cast(keras.ops.shape(y_pred)[0], "float32"))

    def result(self):
        return self.rows


def compiled(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[Count(), "mae"])
    model.optimizer.build(model.trainable_variables)
    model.evaluate(np.ones((2, 3)), np.ones((2, 1)), verbose=0)
    model.reset_metrics()
    return model


class OfTwoWorkers(Replicas):
    """Replicas that take note of what they ask other workers; those add `other` to every sum."""

    @classmethod
    def of(cls, replicas, other=0):
        made = copy.copy(replicas)
        made.__class__, made.num_workers, made.other, made.asked = cls, 2, other, []
        return made

    def _sum_of_firsts(self, values, *, first):
        self.asked.append((values.dtype.name, values.shape))
        return values + np.asarray(self.other, values.dtype)

    def bytes_of_chief(self, content):
        return content


def test_workers_whose_metrics_are_empty_ask_the_same():
    """As after a run of one worker has been resumed: the first one holds what all rows have added up to."""
    model, asked, found = compiled(tf.distribute.get_strategy()), [], []
    for held, other in ((3.0, 0.0), (0.0, 3.0)):
        replicas = OfTwoWorkers.of(Replicas(tf.distribute.get_strategy()), other)
        metrics = MetricDifference(model, replicas)
        before = {id(one.value): np.float32(held) for one in metrics.variables}
        after = {place: value + 2 for place, value in before.items()}
        plain = [one.value for one in metrics.variables]
        of_all = metrics.begin(State(plain, before))  # what one device begins with
        metrics.end(State(plain, after))
        assert metrics.begun
        of_device = {place: value + 2 for place, value in of_all.items()}
        found.append(list(metrics.of_step(State(plain, of_device), Tolerance(1e-4, 1e-4))))
        metrics.differing_anywhere()
        metrics.gather([])  # of those that workers agree on
        asked.append(replicas.asked)
    assert asked[0] == asked[1]
    assert found == [[], []]


@pytest.mark.parametrize("differing", [(), ("a",), ("log b", "log c"), ("log b", "a")])
def test_workers_agree_on_what_differs(differing):
    proofs = []
    for own, other in ((differing, 0), ((), 0), ((), 1)):
        replicas = OfTwoWorkers.of(Replicas(tf.distribute.get_strategy()), other)
        found, flags = agreed(Proof(kind="train", num_replicas=2, differing=own), ["a"], [False], replicas)
        proofs.append(found)
        assert flags == [bool(other)]
    assert set(proofs[0].differing) == set(differing)
    assert not proofs[1].differing
    assert proofs[2].failure


def test_workers_compare_a_step_in_the_same_way_or_not_at_all():
    replicas = Replicas(tf.distribute.get_strategy())
    assert agreed_way("", True, replicas) == ("", True)
    assert agreed_way("", False, OfTwoWorkers.of(replicas)) == ("", False)
    for failure, is_apart, other in [("", True, 0), ("", False, 1), ("odd", False, 0)]:
        failure, is_apart = agreed_way(failure, is_apart, OfTwoWorkers.of(replicas, other))
        assert failure
        assert not is_apart


def test_a_metric_that_returns_its_variable_gives_one_device_the_rows_of_one_replica():
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    model = compiled(strategy)
    replicas = Replicas(strategy)
    rows = next(one for one in model.metrics_variables if one.path.endswith("rows"))
    replicas.components([rows], 1)[0].assign(5.0)
    data = tf.ones((4, 3)), tf.ones((4, 1))
    for kind in ("train", "test"):
        one = OneReplica(model, replicas, jit_compile=False)
        step = tf.function(lambda data, one=one, kind=kind: getattr(one, kind)(IteratorBatches(), data))
        replicas.components([rows], 0)[0].assign(0.0)
        assert float(step(data)["count"]) == 4.0
