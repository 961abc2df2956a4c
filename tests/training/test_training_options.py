"""All of Keras's optimizers by name, with the requested arguments."""

import inspect
import itertools
import re

import pytest

from tfaccel.errors import WorkloadError
from tfaccel.training.training_options import OPTIMIZER_NAMES, TrainingOptions


def test_every_optimizer_of_keras_has_its_name(logical_devices):
    import keras

    wrappers = {"optimizer", "lossscaleoptimizer", "multioptimizer", "optimizermap"}
    classes = {name.lower() for name, value in vars(keras.optimizers).items() if inspect.isclass(value)}
    assert set(OPTIMIZER_NAMES) - {"lars"} == classes - wrappers


@pytest.mark.parametrize("name", OPTIMIZER_NAMES)
def test_optimizer_has_what_was_asked_for(logical_devices, name):
    import keras

    options = TrainingOptions(optimizer=name, learning_rate=0.02, weight_decay=0.5, clipnorm=3.0, ema=True)
    optimizer = options.make_optimizer(num_steps=10)
    assert type(optimizer).__name__.lower() == name
    assert isinstance(optimizer, keras.optimizers.Optimizer)
    assert optimizer is not options.make_optimizer(num_steps=10)
    config = optimizer.get_config()
    optimizer.iterations.assign(1)
    assert float(optimizer.learning_rate) == pytest.approx(0.02)
    assert (config["weight_decay"], config["clipnorm"], config["use_ema"]) == (0.5, 3.0, True)


def test_weight_decay_leaves_biases_and_normalisation_alone(logical_devices):
    import keras
    import numpy as np

    layers = [keras.Input((4,)), keras.layers.Dense(3, bias_initializer="ones"), keras.layers.BatchNormalization()]
    model = keras.Sequential(layers)
    optimizer = TrainingOptions(optimizer="sgd", learning_rate=0.1, weight_decay=0.5).make_optimizer(num_steps=1)
    before = [variable.numpy() for variable in model.trainable_variables]
    optimizer.apply([np.zeros(value.shape, "float32") for value in before], model.trainable_variables)
    kept = [0.95, 1.0, 1.0, 1.0]  # kernel, bias, gamma, beta
    for old, variable, part in zip(before, model.trainable_variables, kept, strict=True):
        assert np.allclose(variable.numpy(), part * old, atol=1e-6)


def test_names_are_keras_s_in_any_case():
    assert TrainingOptions(optimizer="AdamW") == TrainingOptions(optimizer="adamw")
    assert TrainingOptions(optimizer="ScheduleFreeAdamW").optimizer == "schedulefreeadamw"


def test_learning_rate_follows_the_optimizer_unless_given():
    rates = {TrainingOptions(optimizer=name).peak_learning_rate for name in OPTIMIZER_NAMES}
    assert len(rates) > 3
    assert TrainingOptions(optimizer="sgd", learning_rate=0.5).peak_learning_rate == 0.5


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
        ({"schedule": "cosin"}, "There is no learning-rate schedule 'cosin'. Did you mean 'cosine'?"),
        ({"schedule": "step"}, "learning-rate schedule 'step'. Schedules: cosine, linear, exponential, constant."),
        ({"warm_up": 1}, "`warm_up` must be a number from 0 to below 1. Received: warm_up=1."),
        ({"early_stopping": 0}, "`early_stopping` must be a whole number of epochs of at least 1, or None. Received: "),
        ({"learn_rate": 1.0}, "There is no option 'learn_rate'. Did you mean 'learning_rate'?"),
        ({"xyz": 1.0}, "There is no option 'xyz'. Options: optimizer, learning_rate, "),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(WorkloadError, match=re.escape(message)):
        TrainingOptions.of(options)


def test_weight_decay_follows_rate_and_length_of_a_run_unless_given(logical_devices):
    options = TrainingOptions(optimizer="adam", learning_rate=0.02)
    assert options.make_optimizer(num_steps=50).weight_decay == pytest.approx(0.5 / (50 * 0.02))
    assert TrainingOptions(weight_decay=0.0).make_optimizer(num_steps=50).weight_decay == 0.0


def test_weight_decay_may_be_nothing():
    assert TrainingOptions(weight_decay=0).weight_decay == 0


@pytest.mark.parametrize(("name", "last"), [("cosine", 1e-3), ("linear", 1e-3), ("exponential", 1e-3), ("constant", 1)])
def test_every_schedule_rises_and_falls_as_it_says(logical_devices, name, last):
    import keras

    optimizer = TrainingOptions(learning_rate=0.5, schedule=name, warm_up=0.2).make_optimizer(num_steps=50)
    schedule = keras.optimizers.schedules.deserialize(optimizer.get_config()["learning_rate"])
    rates = [float(schedule(step)) for step in range(60)]
    assert rates[:11] == pytest.approx([0.05 + 0.045 * step for step in range(11)])
    assert max(rates) == pytest.approx(0.5)
    assert all(a >= b - 1e-7 for a, b in itertools.pairwise(rates[10:]))
    assert rates[50] == pytest.approx(0.5 * last, rel=1e-3)
    assert (rates[30] < 0.4) == (name != "constant")


def test_early_stopping_is_a_callback():
    assert TrainingOptions().callbacks() == []
    (callback,) = TrainingOptions(early_stopping=3).callbacks()
    assert (callback.monitor, callback.patience, callback.restore_best_weights) == ("val_loss", 3, True)
