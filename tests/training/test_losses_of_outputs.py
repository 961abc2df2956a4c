"""Losses, metrics, weights and targets that do not fit a model: what Keras says, on any number of replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel

pytestmark = pytest.mark.usefixtures("logical_devices")

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
BY_NAME, IN_ORDER = {"a": Y, "b": Y}, [Y, Y]
# Whether the outputs have names, arguments of `compile`, and targets.
CASES = {
    "a loss is missing": (True, {"loss": {"a": "mse"}}, BY_NAME),
    "a loss is missing in a dict for a list": (False, {"loss": {"a": "mse"}}, IN_ORDER),
    "the losses are fewer": (False, {"loss": ["mse"]}, IN_ORDER),
    "the losses are more": (False, {"loss": ["mse"] * 3}, IN_ORDER),
    "a loss is of no output": (True, {"loss": {"a": "mse", "b": "mse", "c": "mse"}}, BY_NAME),
    "a metric is of no output": (True, {"loss": "mse", "metrics": {"c": "mae"}}, BY_NAME),
    "the metrics are fewer": (False, {"loss": ["mse"] * 2, "metrics": ["mae"]}, IN_ORDER),
    "a weighted metric is of no output": (False, {"loss": ["mse"] * 2, "weighted_metrics": {"c": "mae"}}, IN_ORDER),
    "a weight is of no output": (True, {"loss": dict.fromkeys("ab", "mse"), "loss_weights": {"c": 1.0}}, BY_NAME),
    "the weights are fewer": (False, {"loss": ["mse"] * 2, "loss_weights": [1.0]}, IN_ORDER),
    "a target is missing": (True, {"loss": dict.fromkeys("ab", "mse")}, {"a": Y}),
    "the targets are fewer": (False, {"loss": ["mse"] * 2}, [Y]),
}


def outcome(fit, case, strategy=None):
    """The history, or the error, of one epoch."""
    named, arguments, targets = CASES[case]
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    with (strategy or tf.distribute.get_strategy()).scope():
        inputs = keras.Input((3,))
        outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in "ab"}
        model = keras.Model(inputs, outputs if named else list(outputs.values()))
        model.compile("sgd", **arguments)
    try:
        history = fit(model, X, targets, batch_size=8, epochs=1, verbose=0).history
    except Exception as error:
        return type(error).__name__, str(error)
    return {name: pytest.approx(values, abs=1e-6) for name, values in history.items()}


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("case", CASES)
def test_what_keras_says_is_said(case):
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    plain = outcome(keras.Model.fit, case)
    expected = plain if isinstance(plain, tuple) else {name: one.expected for name, one in plain.items()}
    for found in (outcome(tfaccel.fit, case), outcome(tfaccel.fit, case, strategy)):
        assert found == expected
