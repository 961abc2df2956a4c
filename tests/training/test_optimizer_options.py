"""Optimizers by name: all of Keras's, with what was asked of them."""

import inspect
import re

import pytest

from tfaccel.errors import WorkloadError
from tfaccel.training.optimizer_options import OPTIMIZER_NAMES, OptimizerOptions


def test_every_optimizer_of_keras_has_its_name(logical_devices):
    import keras

    wrappers = {"optimizer", "lossscaleoptimizer", "multioptimizer", "optimizermap"}
    classes = {name.lower() for name, value in vars(keras.optimizers).items() if inspect.isclass(value)}
    assert set(OPTIMIZER_NAMES) == classes - wrappers


@pytest.mark.parametrize("name", OPTIMIZER_NAMES)
def test_optimizer_has_what_was_asked_for(logical_devices, name):
    import keras

    options = OptimizerOptions(optimizer=name, learning_rate=0.02, weight_decay=0.5, clipnorm=3.0, ema=True)
    optimizer = options.make(0.01, num_steps=9)
    assert type(optimizer).__name__.lower() == name
    assert isinstance(optimizer, keras.optimizers.Optimizer)
    assert optimizer is not options.make(0.01, num_steps=9)
    config = optimizer.get_config()
    assert config["learning_rate"] == pytest.approx(0.01)
    assert (config["weight_decay"], config["clipnorm"], config["use_ema"]) == (0.5, 3.0, True)


def test_weight_decay_leaves_biases_and_normalisation_alone(logical_devices):
    import keras
    import numpy as np

    layers = [keras.Input((4,)), keras.layers.Dense(3, bias_initializer="ones"), keras.layers.BatchNormalization()]
    model = keras.Sequential(layers)
    optimizer = OptimizerOptions(optimizer="sgd", weight_decay=0.5).make(0.1, num_steps=9)
    before = [variable.numpy() for variable in model.trainable_variables]
    optimizer.apply([np.zeros(value.shape, "float32") for value in before], model.trainable_variables)
    kept = [0.95, 1.0, 1.0, 1.0]  # kernel, bias, gamma, beta
    for old, variable, part in zip(before, model.trainable_variables, kept, strict=True):
        assert np.allclose(variable.numpy(), part * old, atol=1e-6)


def test_names_are_keras_s_in_any_case():
    assert OptimizerOptions(optimizer="AdamW") == OptimizerOptions(optimizer="adamw")
    assert OptimizerOptions(optimizer="ScheduleFreeAdamW").optimizer == "schedulefreeadamw"


def test_learning_rate_follows_the_optimizer_unless_given():
    rates = {OptimizerOptions(optimizer=name).peak_learning_rate for name in OPTIMIZER_NAMES}
    assert len(rates) > 3
    assert OptimizerOptions(optimizer="sgd", learning_rate=0.5).peak_learning_rate == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adamv"}, "Keras has no optimizer 'adamv'. Did you mean 'adam"),
        ({"optimizer": "zzz"}, "Keras has no optimizer 'zzz'. Optimizers: adadelta, "),
        ({"learning_rate": 0.0}, "`learning_rate` must be a number above 0, or None. Received: learning_rate=0.0."),
        ({"learning_rate": float("nan")}, "`learning_rate` must be a number above 0"),
        ({"weight_decay": -1}, "`weight_decay` must be a number at least 0, or None. Received: weight_decay=-1."),
        ({"clipnorm": True}, "`clipnorm` must be a number above 0"),
        ({"global_clipnorm": "1"}, "`global_clipnorm` must be a number above 0"),
        ({"clipnorm": 1.0, "global_clipnorm": 2.0}, "not by both. Received: clipnorm=1.0, global_clipnorm=2.0. Drop"),
        ({"ema": 0.9}, "`ema` must be true or false. Received: ema=0.9."),
        ({"learn_rate": 1.0}, "There is no option 'learn_rate'. Did you mean 'learning_rate'?"),
        ({"xyz": 1.0}, "There is no option 'xyz'. Options: optimizer, learning_rate, "),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(WorkloadError, match=re.escape(message)):
        OptimizerOptions.of(options)


def test_weight_decay_follows_rate_and_length_of_a_run_unless_given(logical_devices):
    options = OptimizerOptions(optimizer="adam", learning_rate=0.02)
    assert options.make(0.01, num_steps=50).weight_decay == pytest.approx(0.5 / (50 * 0.02))
    assert OptimizerOptions(weight_decay=0.0).make(0.01, num_steps=50).weight_decay == 0.0


def test_weight_decay_may_be_nothing():
    assert OptimizerOptions(weight_decay=0).weight_decay == 0
