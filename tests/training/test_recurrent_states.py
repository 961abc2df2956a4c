"""The states of stateful recurrent layers: in checkpoints, on each replica; and put back after a learning-rate test."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfaccel
from tfaccel.errors import RunDirError
from tfaccel.training.run.checkpoint import _rows_for, read_state, write_state
from tfaccel.training.steps.model_parts import untracked_variables
from tfaccel.training.steps.replicas import Replicas

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(32, 3, 2)).astype("float32"), RANDOM.normal(size=(32, 1)).astype("float32")
ROWS = 8  # of a global batch


def made(num_replicas=0):
    """A model with stateful layers, on one device (0) or replicas, with the replicas."""
    devices = [f"CPU:{i}" for i in range(num_replicas)]
    strategy = tf.distribute.MirroredStrategy(devices) if devices else tf.distribute.get_strategy()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        inputs = keras.Input(batch_shape=(ROWS // max(1, num_replicas), 3, 2))
        hidden = keras.layers.LSTM(4, stateful=True, name="memory")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
    return model, Replicas(strategy)


def trained(model, begin=0, end=32):
    tfaccel.fit(model, X[begin:end], Y[begin:end], batch_size=ROWS, epochs=1, shuffle=False, verbose=0)
    return model


def states(model):
    """The states of all rows, in order."""
    local = model.distribute_strategy.experimental_local_results
    return [np.concatenate([part.numpy() for part in local(one.value)]) for one in untracked_variables(model)]


def continued(before, after):
    """Trains half of the data, and the rest with a new model that continues."""
    model, replicas = made(before)
    state = read_state(trained(model, 0, 16), replicas)
    model, replicas = made(after)
    write_state(model, replicas, state)
    return trained(model, 16, 32)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 1), (2, 2), (0, 2)])
def test_a_new_model_continues_with_the_states_of_the_rows(logical_devices, before, after):
    whole, model = trained(made()[0]), continued(before, after)
    assert len(states(whole)) == 2
    assert all(np.abs(one).max() > 0.01 for one in states(whole))
    exact = before == after == 0
    for one, other in zip([*states(whole), *whole.get_weights()], [*states(model), *model.get_weights()], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=0 if exact else 1e-5)


def test_states_for_another_number_of_replicas_follow_the_rows():
    parts = np.arange(16.0).reshape(2, 4, 2)  # two replicas of four rows
    assert [part.tolist() for part in _rows_for(parts, 1)] == [parts.reshape(8, 2).tolist()]
    np.testing.assert_array_equal(np.concatenate(_rows_for(parts, 4)), parts.reshape(8, 2))


def test_the_states_inside_other_layers_are_found():
    inner = keras.layers.Bidirectional(keras.layers.GRU(2, stateful=True))
    cells = keras.layers.StackedRNNCells([keras.layers.LSTMCell(2), keras.layers.GRUCell(3)])
    model = keras.Sequential([keras.Input(batch_shape=(8, 3, 2)), keras.layers.RNN(cells, True, stateful=True), inner])
    shapes = sorted(tuple(one.shape) for one in untracked_variables(model))
    assert shapes == [(8, 2)] * 4 + [(8, 3)]


def test_a_checkpoint_without_states_is_refused(logical_devices):
    model, replicas = made()
    state = {name: array for name, array in read_state(model, replicas).items() if not name.startswith("state/")}
    with pytest.raises(RunDirError, match=r"older version .*states of recurrent layers \(memory/rnn_state.*Start over"):
        write_state(model, replicas, state)


@pytest.mark.parametrize("num_replicas", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_learning_rate_test_puts_the_states_back(logical_devices, num_replicas):
    model, _ = made(num_replicas)
    before = states(trained(model))
    tfaccel.find_learning_rate(model, X, Y, batch_size=ROWS, test=tfaccel.options.LearningRateTest(num_steps=14))
    for one, other in zip(before, states(model), strict=True):
        np.testing.assert_array_equal(one, other)
