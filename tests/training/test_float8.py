"""Float8: the scales of Keras's `quantize("float8")` are Keras's on one device, and refused on several replicas."""

import contextlib

import numpy as np
import pytest

from tfaccel.errors import PlanError

pytestmark = [
    pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method:UserWarning"),
]


def quantized(strategy=None, accumulation=None):
    import keras

    keras.utils.set_random_seed(0)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        layers = [keras.layers.Dense(16, activation="relu", dtype="mixed_bfloat16"), keras.layers.Dense(4)]
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.quantize("float8")
        model.compile(keras.optimizers.Adam(gradient_accumulation_steps=accumulation), "mse")
    return model


@pytest.fixture
def data():
    x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
    return x, x[:, :4]


@pytest.mark.parametrize("accumulation", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_scales_are_those_of_keras_on_one_device(logical_devices, data, accumulation):
    import keras

    from tfaccel import fit

    ours, theirs = quantized(accumulation=accumulation), quantized(accumulation=accumulation)
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
    fit(ours, *data, exact_kernels=True, **options)
    keras.Model.fit(theirs, *data, **options)
    scales = [one.path for one in ours.trainable_variables if one.overwrite_with_gradient]
    assert any("inputs_scale" in path for path in scales)
    for one, other in zip(ours.variables, theirs.variables, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1e-6, err_msg=one.path)


def test_several_replicas_are_refused(logical_devices, data):
    import tensorflow as tf

    from tfaccel import evaluate, fit

    model = quantized(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    before = model.get_weights()
    message = (
        r"inputs_scale takes the value of its gradient, as the scales of float8 do, .* and 2 replicas. Train it on"
    )
    with pytest.raises(PlanError, match=message):
        fit(model, *data, batch_size=8, verbose=0)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.isfinite(evaluate(model, *data, batch_size=8, verbose=0))
