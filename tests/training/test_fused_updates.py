"""The kernels of optimizers end where Keras's updates do, and leave to Keras what they would compute otherwise."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfaccel
from tfaccel.training.kernels.optimizer_updates import RowGradient, fused_update
from tfaccel.training.steps.overrides import instance_attributes

pytestmark = pytest.mark.usefixtures("logical_devices")

OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "AdamW": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=1.0),
    "Adam with EMA": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9),
    "Adam that accumulates": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9),
    "Nesterov momentum": lambda: keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
    "schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.1, 5)),
}
DEFAULT = ("AdamW", "Adam that accumulates", "Nesterov momentum")


def trained(make, fit, **arguments):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(1)])
    model.compile(make(), "mse")
    x = np.random.default_rng(1).normal(size=(24, 4)).astype("float32")
    fit(model, x, x[:, :1], batch_size=4, epochs=2, verbose=0, shuffle=False, **arguments)
    return [np.asarray(value) for value in [*model.weights, *model.optimizer.variables]]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in DEFAULT else pytest.mark.slow) for name in OPTIMIZERS]
)
def test_optimizers_end_where_kerass_do(name):
    fused, exact = trained(OPTIMIZERS[name], tfaccel.fit), trained(OPTIMIZERS[name], keras.Model.fit)
    for received, expected in zip(fused, exact, strict=True):
        np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow  # without it: tests/world/test_fit_arguments.py
def test_exact_kernels_give_kerass_last_bits():
    exact = trained(OPTIMIZERS["AdamW"], tfaccel.fit, exact_kernels=True)
    for received, expected in zip(exact, trained(OPTIMIZERS["AdamW"], keras.Model.fit), strict=True):
        np.testing.assert_array_equal(received, expected)


def with_own_step(optimizer):
    optimizer.update_step = lambda gradient, variable, learning_rate: variable.assign_sub(gradient)
    return optimizer


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Adam(amsgrad=True),
        lambda: keras.optimizers.SGD(),
        lambda: keras.optimizers.RMSprop(),
        lambda: type("Mine", (keras.optimizers.Adam,), {"update_step": lambda *_: None})(),
        lambda: type("Mine", (keras.optimizers.SGD,), {"assign_add": lambda *_: None})(momentum=0.9),
        lambda: with_own_step(keras.optimizers.Adam()),
    ],
)
def test_other_optimizers_are_left_alone(make):
    assert fused_update(make()) == {}


@pytest.mark.parametrize(
    ("make", "dtype", "sparse"),
    [
        (lambda: keras.optimizers.Adam(0.1, beta_1=0.0), "float32", True),
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9), "float32", True),
        (lambda: keras.optimizers.Adam(0.1), "bfloat16", False),
        (lambda: keras.optimizers.Adam(0.1, beta_2=0.99), "float16", False),
        (lambda: keras.optimizers.Adam(0.1, beta_2=0.99999), "float32", False),
        (lambda: keras.optimizers.SGD(0.1, momentum=0.9), "bfloat16", False),
    ],
)
def test_updates_that_would_be_others_are_left_to_keras(make, dtype, sparse):
    gradient = tf.constant(np.random.default_rng(0).normal(size=(5, 2)).astype("float32"))
    if sparse:
        gradient = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 3]), tf.constant([5, 2]))
    for received, expected in zip(*outcomes(make, dtype, gradient), strict=True):
        np.testing.assert_array_equal(received, expected)


def outcomes(make, dtype, gradient):
    """What three updates with and without kernels end with: the weight, and the optimizer's variables."""

    def outcome(*, fused):
        optimizer, table = make(), keras.Variable(np.ones((5, 2)), dtype=dtype)
        optimizer.build([table])
        with instance_attributes(optimizer, fused_update(optimizer) if fused else {}):
            for _ in range(3):
                optimizer.apply([gradient], [table])
        return [np.asarray(value, np.float64) for value in [table, *optimizer.variables]]

    return outcome(fused=True), outcome(fused=False)


def test_sparse_gradients_with_rows_that_occur_twice():
    values = tf.constant(np.random.default_rng(0).normal(size=(4, 2)).astype("float32"))
    gradient = tf.IndexedSlices(values, tf.constant([1, 3, 1, 1]), tf.constant([5, 2]))
    received, expected = outcomes(lambda: keras.optimizers.Adam(0.1, clipnorm=1.0), "float32", gradient)
    assert any(not np.array_equal(one, other) for one, other in zip(received, expected, strict=True))  # a kernel ran
    for one, other in zip(received, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("dtype", "relative", "absolute"), [("float32", 2e-5, 1e-7), ("float64", 1e-12, 1e-15)])
def test_sparse_gradients_of_large_tables(dtype, relative, absolute):
    """The kernel's own `1 - beta_2` is off by 1.3e-5 in float32, as for dense gradients."""
    rng, size = np.random.default_rng(0), (5000, 3)
    rows = [np.concatenate([rng.integers(0, 5000, count), [7, 7, 4999]]) for count in (500, 90, 90, 700)]
    rows.append(np.arange(40, 0, -1))  # none occurs twice
    batches = [(one.astype("int64"), rng.normal(size=(len(one), 3)).astype(dtype)) for one in rows]

    def trained(*, fused):
        optimizer, table = keras.optimizers.Adam(0.1), keras.Variable(np.ones(size), dtype=dtype)
        optimizer.build([table])

        @tf.function(input_signature=[tf.TensorSpec([None], "int64"), tf.TensorSpec([None, 3], dtype)])
        def step(indices, values):
            with instance_attributes(optimizer, fused_update(optimizer) if fused else {}):
                optimizer.apply([tf.IndexedSlices(values, indices, tf.constant(size))], [table])

        for batch in batches:
            step(*batch)
        return [np.asarray(value) for value in [table, *optimizer.variables]]

    for one, other in zip(trained(fused=True), trained(fused=False), strict=True):
        np.testing.assert_allclose(one, other, rtol=relative, atol=absolute)


def test_rows_of_earlier_steps_are_zero_again():
    gradient = RowGradient(tf.Variable(tf.ones([6, 2])))
    beyond = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([0, 6]))
    for rows in ([1, 3, 1, 1], [3, 5], [], [0]):
        values = np.arange(2.0 * len(rows), dtype="float32").reshape(-1, 2) + 1.0
        dense, others = gradient.of(
            tf.IndexedSlices(tf.constant(values, shape=(len(rows), 2)), tf.constant(rows, "int32"))
        )
        expected = np.zeros((6, 2))
        for row, value in zip(rows, values, strict=True):
            expected[row] = value
        np.testing.assert_array_equal(dense, expected)
        assert list(others.indices.numpy()) == [one for place, one in enumerate(rows) if one in rows[place + 1 :]]
        with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
            gradient.of(beyond)
