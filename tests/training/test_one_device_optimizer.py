"""An optimizer's overrides of Keras's update remain under a strategy; a trained model leaves no graph behind."""

import contextlib
import functools
import gc

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfaccel.training.fit import fit

pytestmark = pytest.mark.usefixtures("logical_devices")

OPTIMIZERS = {
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "muon": lambda: keras.optimizers.Muon(0.01, weight_decay=0.1),
    "averaging": lambda: keras.optimizers.AdamW(
        0.01, gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=2
    ),
}
STRATEGIES = {
    "none": contextlib.nullcontext,
    "one": lambda: tf.distribute.OneDeviceStrategy("/cpu:0").scope(),
    "two": lambda: tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope(),
}


def losses(train, scope, make_optimizer):
    keras.utils.set_random_seed(0)
    with scope:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
        model.compile(make_optimizer(), "mse")
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    kind = type(model.optimizer)
    history = train(model, x, x.sum(axis=1, keepdims=True), batch_size=16, epochs=3, shuffle=False, verbose=0)
    assert type(model.optimizer) is kind
    return history.history["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nadam", "muon", "averaging"])
def test_losses_are_those_of_keras_on_one_device(name):
    wanted = losses(keras.Model.fit, contextlib.nullcontext(), OPTIMIZERS[name])
    for strategy, scope in STRATEGIES.items():
        found = losses(functools.partial(fit, exact_kernels=True), scope(), OPTIMIZERS[name])
        assert found == pytest.approx(wanted, rel=1e-5 if strategy == "two" else 0), strategy


def num_graphs():
    keras.backend.clear_session()
    gc.collect()
    return sum(isinstance(one, tf.Graph) for one in gc.get_objects())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "one"])
def test_graphs_of_trained_models_are_let_go(name):
    losses(fit, STRATEGIES[name](), OPTIMIZERS["averaging"])
    before = num_graphs()
    for _ in range(3):
        losses(fit, STRATEGIES[name](), OPTIMIZERS["averaging"])
    assert num_graphs() == before
