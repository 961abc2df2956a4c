"""Where one device has no memory for a global batch, steps are compared on fewer rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_models import assert_equal, scope_of, trained

from tfaccel.errors import CoupledRowsError
from tfaccel.training.evaluate import predict
from tfaccel.training.fit import fit
from tfaccel.training.steps.engine import get_engine

pytestmark = pytest.mark.usefixtures("logical_devices")

ROWS = 32
RNG = np.random.default_rng(0)
X = RNG.normal(size=(2 * ROWS, 6)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


def memory():
    """The memory of this machine, in bytes."""
    with open("/proc/meminfo") as lines:
        found = dict(line.split()[:2] for line in lines)
    return 1024 * (int(found["MemTotal:"]) + int(found["SwapTotal:"]))


class NeedsRoom(keras.layers.Layer):
    """Asks for memory, which it does not touch: for a whole batch 1.3 times what there is."""

    def call(self, x):
        shape = tf.stack([tf.shape(x)[0], int(1.3 * memory() / ROWS / 4)])
        room = tf.raw_ops.Empty(shape=shape, dtype=tf.float32, init=False)
        return x + tf.cast(tf.shape(room)[1] * 0, x.dtype)


def overlap(y, p):
    return 1 - (2 * tf.reduce_sum(y * p) + 1) / (tf.reduce_sum(y) + tf.reduce_sum(p) + 1)


class OwnStep(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = overlap(y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def make_model(*first, loss="mse", kind=keras.Sequential):
    def make():
        model = kind([keras.Input((6,)), *(layer() for layer in first), keras.layers.Dense(1, activation="sigmoid")])
        model.compile(keras.optimizers.Adam(0.02), loss)
        return model

    return make


@pytest.mark.parametrize("loss", ["mse", overlap])
def test_fewer_rows_are_compared_and_that_is_said(loss):
    with scope_of(2):
        model = make_model(NeedsRoom, loss=loss)()
    fit(model, X, Y, batch_size=ROWS, verbose=0, validation_data=(X, Y))
    assert predict(model, X, batch_size=ROWS, verbose=0).shape == (2 * ROWS, 1)
    proofs = get_engine(model).checks.proofs
    assert sorted(proofs) == ["predict", "test", "train"]
    for proof in proofs.values():
        assert (proof.holds, proof.num_rows, proof.num_batch_rows) == (True, ROWS // 2, ROWS)
        assert "on a step of 16 rows (one device has no memory for all 32 of a batch): " in str(proof)
    found = trained(make_model(NeedsRoom, loss=loss), 2, X, Y, batch_size=ROWS)
    assert_equal(found, trained(make_model(loss=loss), 0, X, Y, batch_size=ROWS))


def test_what_couples_rows_is_refused_and_nothing_has_changed():
    with scope_of(2):
        model = make_model(NeedsRoom, kind=OwnStep)()
    before = model.get_weights()
    with pytest.raises(CoupledRowsError, match=r"OwnStep\.train_step on 16 rows"):
        fit(model, X, Y, batch_size=ROWS, verbose=0)
    assert all(map(np.array_equal, model.get_weights(), before))
    assert model.optimizer.iterations.numpy() == 0
