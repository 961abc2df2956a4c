"""Errors of a step that several replicas cause."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_models import scope_of

from tfaccel.errors import DataError
from tfaccel.training.fit import fit

pytestmark = pytest.mark.usefixtures("logical_devices")

PAIRS = np.random.default_rng(0).uniform(size=(8, 10, 6)).astype("float32")


class Stacked(keras.utils.PyDataset):
    """Batches of one array (2, 10, 6): ten anchors, and their ten positives."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return PAIRS[2 * index : 2 * index + 2]


class Metric(keras.Model):
    def train_step(self, data):
        data = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            similar = keras.ops.einsum("ae,pe->ap", self(data[0], training=True), self(data[1], training=True))
            loss = self.compute_loss(y=keras.ops.arange(10), y_pred=similar)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


@pytest.mark.parametrize("check_rows", [True, False])
@pytest.mark.parametrize("batches", [Stacked, lambda: tf.data.Dataset.from_tensor_slices(PAIRS).batch(2, True)])
def test_a_batch_whose_first_axis_counts_no_rows_is_refused(batches, check_rows):
    with scope_of(2):
        inputs = keras.Input((6,))
        model = Metric(inputs, keras.layers.Dense(4)(inputs))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(
        DataError, match=r"takes entry 1 of the first axis of its data, which 2 replicas split"
    ) as error:
        fit(model, batches(), shuffle=False, verbose=0, check_rows=check_rows)
    assert "yield a tuple of arrays, (anchors, positives)" in str(error.value)
