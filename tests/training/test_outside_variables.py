"""Variables outside of the model that a step reads and a callback moves, in runs that are stopped and resumed."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_models import X, Y, assert_equal, scope_of, trained
from test_held_optimizers import Lookahead

from tfaccel.errors import RunDirError
from tfaccel.training.fit import fit
from tfaccel.training.run.resume import Resume

pytestmark = pytest.mark.usefixtures("logical_devices")


class Moves(keras.callbacks.Callback):
    """Moves variables by what they were, and sets one by the epoch; is stopped after the second epoch."""

    def __init__(self, moved, set_by_epoch, stops):
        super().__init__()
        self.moved, self.set_by_epoch = moved, set_by_epoch
        self.stops_after = (2,) if stops else ()  # a flag would be restored with the checkpoint
        self.num_begun = 0

    def on_epoch_begin(self, epoch, logs=None):
        for variable in self.moved:
            variable.assign(variable + 0.5)
        self.set_by_epoch.assign(0.1 * epoch)
        self.num_begun += 1

    def on_epoch_end(self, epoch, logs=None):
        if epoch in self.stops_after:
            raise RuntimeError("stopped")


def script(folder, num_replicas=0, *, stops=False, shape=()):
    """Trains with a weight in a loss's closure, one of a regularizer, and a large table that nothing moves."""
    keras.utils.set_random_seed(0)
    in_loss, by_epoch = tf.Variable(tf.ones(shape), name="beta"), tf.Variable(0.0, name="beta")
    table = tf.Variable(tf.ones([600, 600]))
    with scope_of(num_replicas):
        in_regularizer = keras.Variable(0.0, trainable=False)

        def regularizer(kernel):
            return in_regularizer * keras.ops.sum(kernel**2)

        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, kernel_regularizer=regularizer)])

        def loss(y, p):
            return (tf.reduce_mean(in_loss) + by_epoch + table[0, 0]) * keras.losses.mean_squared_error(y, p)

        model.compile(keras.optimizers.Adam(0.05), loss)
    decays = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.9 * rate)
    moves = Moves([in_loss, in_regularizer], by_epoch, stops)
    options = {"epochs": 4, "batch_size": 8, "verbose": 0}
    callbacks = [moves, decays, *([] if folder is None else [Resume(folder, save_freq=1)])]
    history = fit(model, X, Y, callbacks=callbacks, **options).history["loss"]
    assert moves.num_begun == 4
    return history, model.get_weights()


def assert_same(found, wanted):
    assert found[0] == wanted[0]
    for one, other in zip(found[1], wanted[1], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("num_replicas", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_variables_that_a_callback_moves_are_restored(num_replicas, tmp_path):
    wanted = script(None if num_replicas == 0 else tmp_path / "whole", num_replicas)
    with pytest.raises(RuntimeError, match="stopped"):
        script(tmp_path / "run", num_replicas, stops=True)
    newest = max((tmp_path / "run" / "checkpoints").iterdir())
    assert sum(file.stat().st_size for file in newest.iterdir()) < 600 * 600 * 4  # the table is as it was
    assert_same(script(tmp_path / "run", num_replicas), wanted)


def test_a_script_that_reads_another_variable_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="stopped"):
        script(tmp_path / "run", stops=True)
    with pytest.raises(RunDirError, match=r"its training step read the variable 'beta#1' of shape \(\), which is no"):
        script(tmp_path / "run", shape=(2,))


def test_optimizers_that_others_hold_are_restored(tmp_path):
    def trained(stops):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile(Lookahead(keras.optimizers.Adam(0.05)), "mse")
        stop = Moves([], tf.Variable(0.0), stops)
        fit(model, X, Y, epochs=4, batch_size=8, verbose=0, callbacks=[stop, Resume(tmp_path / str(whole))])
        return [], [*model.get_weights(), *(np.asarray(one) for one in model.optimizer.fast.variables)]

    whole = True
    wanted = trained(stops=False)
    whole = False
    with pytest.raises(RuntimeError, match="stopped"):
        trained(stops=True)
    assert_same(trained(stops=False), wanted)


class Growing(keras.regularizers.Regularizer):
    """A penalty that grows whenever it is computed."""

    def __init__(self):
        self.number = tf.Variable(0.0, trainable=False)

    def __call__(self, kernel):
        self.number.assign_add(1.0)
        return 0.01 * self.number * tf.reduce_sum(kernel**2)


def with_growing_penalty(reduction):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, kernel_regularizer=Growing())])
    model.compile("sgd", keras.losses.MeanSquaredError(reduction=reduction))
    return model


class Averages(keras.Model):
    """Pulls its weights toward their moving averages, which TensorFlow keeps by variable."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.average = tf.train.ExponentialMovingAverage(0.9)
        self(X[:1])
        self.compile("sgd", "mse")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        logs = super().train_step(data)
        self.average.apply([weight.value for weight in self.dense.weights])
        for weight in self.dense.weights:
            weight.assign((weight.value + self.average.average(weight.value)) / 2)
        return logs


def test_variables_outside_of_the_model_move_as_on_one_device():
    weighted = {"sample_weight": np.linspace(0.5, 2.0, len(X))}
    cases = [(lambda: with_growing_penalty("mean_with_sample_weight"), weighted, (2,))]
    cases += [(lambda: with_growing_penalty("sum_over_batch_size"), {}, (2,)), (Averages, {}, (1, 2))]
    for make, options, numbers in cases:
        wanted = trained(make, 0, **options)
        for number in numbers:
            assert_equal(trained(make, number, **options), wanted)
