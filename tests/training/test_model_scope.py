"""Models, optimizers and metrics created outside the scope of the strategy that trains them."""

import contextlib
import json

import keras
import pytest
import tensorflow as tf
from replica_models import X, Y, scope_of

from tfaccel.errors import PlanError
from tfaccel.training.evaluate import evaluate
from tfaccel.training.fit import fit

pytestmark = pytest.mark.usefixtures("logical_devices")

OPTIONS = {"epochs": 2, "batch_size": 8, "shuffle": False, "verbose": 0}


def layers(dense=None):
    return [keras.Input((6,)), dense or keras.layers.Dense(4), keras.layers.Dense(1)]


def made(num_replicas, outside=()):
    """A compiled model; the parts named in `outside` are created outside the scope."""

    def scope_of_part(name):
        return contextlib.nullcontext() if name in outside or not num_replicas else strategy.scope()

    keras.utils.set_random_seed(0)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(max(1, num_replicas))])
    with scope_of_part("optimizer"):
        optimizer = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5))
    with scope_of_part("metrics"):
        metrics = [keras.metrics.TruePositives(), keras.metrics.FalsePositives()]
    with scope_of_part("model"):
        model = keras.Sequential(layers())
    with scope_of_part("compile"):
        model.compile(optimizer, "mse", metrics=metrics)
    return model


def test_optimizers_and_metrics_created_outside_the_scope_count_each_step_and_row_once():
    wanted = keras.Model.fit(made(0), X, Y, **OPTIONS).history
    for outside in ((), ("optimizer",), ("metrics",), ("compile",), ("optimizer", "metrics", "compile")):
        model = made(2, outside)
        history = fit(model, X, Y, **OPTIONS).history
        for one, other in zip(history.values(), wanted.values(), strict=True):
            assert one == pytest.approx(other, rel=1e-5), outside
        assert int(model.optimizer.iterations.numpy()) == 6


def test_weights_created_outside_the_scope_are_refused_by_name():
    with scope_of(0):
        model = keras.Sequential(layers())
        model.compile("sgd", "mse")
    with scope_of(2), pytest.raises(PlanError, match=r"4 of the model's 4 weights.*outside the scope of the Mirrored"):
        fit(model, X, Y, **OPTIONS)
    fit(model, X, Y, **OPTIONS)
    with scope_of(2), pytest.raises(PlanError, match="outside the scope of the MirroredStrategy with 2 replicas"):
        evaluate(model, X, Y, verbose=0)
    backbone = keras.layers.Dense(4, name="backbone")
    backbone.build((None, 6))
    with scope_of(2):
        model = keras.Sequential(layers(backbone))
        model.compile("sgd", "mse")
    with pytest.raises(PlanError, match="2 of the model's 4 weights, such as 'backbone/kernel'"):
        fit(model, X, Y, **OPTIONS)


def test_an_optimizer_built_outside_the_scope_is_refused():
    model = made(2, ("compile", "optimizer"))
    model.optimizer.build(model.trainable_variables[:0])
    with pytest.raises(PlanError, match=r"model\.optimizer was built outside the scope of the MirroredStrategy"):
        fit(model, X, Y, **OPTIONS)


def test_the_scope_of_another_strategy_is_refused():
    model = made(2)
    with tf.distribute.OneDeviceStrategy("CPU:0").scope(), pytest.raises(PlanError, match="Received: a call inside"):
        fit(model, X, Y, **OPTIONS)
    with scope_of(2), pytest.raises(PlanError, match="inside the scope of another MirroredStrategy"):
        fit(model, X, Y, **OPTIONS)


@pytest.mark.parametrize("num_replicas", [0, 2])
def test_fit_on_one_of_several_workers_alone_is_refused(monkeypatch, num_replicas):
    model = made(num_replicas)
    cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}}))
    found = "MirroredStrategy, which knows one worker only" if num_replicas else "no strategy"
    with pytest.raises(PlanError, match=f"is worker 1 of 2 according to TF_CONFIG.*built under {found}"):
        fit(model, X, Y, **OPTIONS)
    assert int(model.optimizer.iterations.numpy()) == 0
    evaluate(model, X, Y, verbose=0)  # gives each worker the same number
    cluster["worker"].pop()
    for config in (json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}}), "", "no JSON"):
        monkeypatch.setenv("TF_CONFIG", config)
        fit(model, X, Y, **OPTIONS)


def test_a_strategy_over_devices_that_are_not_there_is_refused():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:7"]).scope():
        model = keras.Sequential(layers())
        model.compile("sgd", "mse")
    with pytest.raises(PlanError, match=r"uses CPU:7, which TensorFlow does not have.*there are CPU:0, CPU:1, CPU:2"):
        fit(model, X, Y, **OPTIONS)
