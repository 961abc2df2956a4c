"""Adam with tables so large that a step writes only its rows into their gradient, with replicas and slots elsewhere."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel
from tfaccel.training.fit import plan_of_model
from tfaccel.training.kernels.optimizer_updates import _MIN_ROWS

pytestmark = pytest.mark.usefixtures("logical_devices")

ROWS, BATCH = _MIN_ROWS + 4, 16
rng = np.random.default_rng(0)
IDS = np.where(rng.random((72, 3)) < 0.3, rng.integers(0, 8, (72, 3)), rng.integers(0, ROWS, (72, 3))).astype("int32")
Y = (IDS.sum(axis=1) % 2).astype("float32")


def built(devices=(), optimizer=keras.optimizers.Adam):
    keras.utils.set_random_seed(3)
    strategy = tf.distribute.MirroredStrategy(devices) if devices else tf.distribute.get_strategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,), dtype="int32"), keras.layers.Embedding(ROWS, 4, name="table")])
        model.add(keras.layers.Flatten())
        model.add(keras.layers.Dense(1))
        model.compile(optimizer(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def trained(model, *, epochs=2, **arguments):
    """All variables after epochs that end with a smaller batch."""
    tfaccel.fit(model, IDS, Y, batch_size=BATCH, epochs=epochs, verbose=0, **arguments)
    return [np.asarray(value) for value in [*model.weights, *model.optimizer.variables]]


def assert_same(received, expected, **tolerance):
    for one, other in zip(received, expected, strict=True):
        np.testing.assert_allclose(one, other, **(tolerance or {"rtol": 0, "atol": 0}))


def test_the_update_is_that_of_keras():
    fused, exact = trained(built()), trained(built(), exact_kernels=True)
    assert any(not np.array_equal(one, other) for one, other in zip(fused, exact, strict=True))
    assert_same(fused, exact, rtol=2e-5, atol=1e-6)


def test_two_replicas_give_what_one_device_gives():
    model = built(("CPU:1", "CPU:2"))
    plan = plan_of_model(model, batch_size=BATCH, sum_duplicate_indices=False, fused_kernels=True)
    assert_same(trained(model, plan=plan), trained(built()), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("place", ["sharded", pytest.param("host", marks=pytest.mark.slow)])
def test_slots_elsewhere_give_the_same_to_the_last_bit(place):
    def on_replicas(optimizer_state):
        model = built(("CPU:1", "CPU:2"), keras.optimizers.AdamW)
        plan = plan_of_model(model, batch_size=BATCH, fused_kernels=True, optimizer_state=optimizer_state)
        return trained(model, plan=plan)

    assert_same(on_replicas(place), on_replicas("replicated"))


def test_nothing_is_kept_that_a_checkpoint_lacks(tmp_path):
    trained(built(), callbacks=[tfaccel.Resume(tmp_path / "run")], epochs=1)
    resumed = trained(built(), callbacks=[tfaccel.Resume(tmp_path / "run")])
    assert_same(resumed, trained(built(), callbacks=[tfaccel.Resume(tmp_path / "whole")]))
