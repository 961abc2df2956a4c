"""Summaries that a step writes are those of all replicas."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_models import X, Y, scope_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tfaccel.training.fit import fit
from tfaccel.training.steps import gather_rows

pytestmark = pytest.mark.usefixtures("logical_devices")


class Writes(keras.Model):
    """Writes the loss, the loss within a condition, and the number of steps."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(*data, self(data[0], training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        step = tf.cast(tf.convert_to_tensor(self.optimizer.iterations), tf.int64)
        with self.writer.as_default(step=step):
            tf.summary.scalar("loss", loss)
            tf.summary.scalar("step", step)
            tf.cond(step > 0, lambda: tf.summary.scalar("own", loss), lambda: False)
            tf.summary.histogram("rows", data[0])
        return {"result": loss}


def written(num_replicas, by, directory):
    keras.utils.set_random_seed(0)
    with scope_of(num_replicas):
        inputs = keras.Input((6,))
        model = Writes(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
    model.writer = tf.summary.create_file_writer(str(directory))
    by(model, X, Y, batch_size=8, shuffle=False, verbose=0)
    model.writer.close()
    events = EventAccumulator(str(directory)).Reload()
    found = {tag.rpartition("/")[2]: events.Tensors(tag) for tag in events.Tags()["tensors"]}
    names = ("loss", "step", "own")  # the last one's tag has the condition's scope in front
    return {name: [float(tf.make_ndarray(event.tensor_proto)) for event in found[name]] for name in names}


def test_a_scalar_of_a_step_is_that_of_all_replicas(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(gather_rows, "_said", set())
    wanted = written(0, keras.Model.fit, tmp_path / "one")
    found = written(2, fit, tmp_path / "two")
    assert len(wanted["loss"]) == 3
    np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=1e-5)
    assert found["step"] == wanted["step"] == [1, 2, 3]
    assert len(found["own"]) == 3
    assert caplog.text.count("writes the mean over the 2 replicas") == 1
    assert caplog.text.count("tf.summary.histogram in a step writes what the first of 2 replicas has") == 1
