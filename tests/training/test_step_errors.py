"""Errors of a step that several replicas cause."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_models import scope_of

from tfaccel.errors import CoupledRowsError, DataError, PlanError
from tfaccel.planning.plan import Plan
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


class TakesTheLastRow(keras.Model):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.gather(self(data[0], training=True), [0, 3]) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


class Accumulates(keras.Model):
    """Adds up the gradients of two batches by hand, and applies them in a condition."""

    def train_step(self, data):
        gradients = self.gradients_of(*data)
        for total, gradient in zip(self.totals, gradients, strict=True):
            total.assign_add(gradient)
        self.finish()
        return {}

    def gradients_of(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        return tape.gradient(loss, self.trainable_variables)

    def finish(self):
        def apply():
            self.optimizer.apply_gradients(zip(self.totals, self.trainable_variables, strict=True))
            return True

        tf.cond(self.optimizer.iterations.value % 2 == 0, apply, lambda: False)


class KeepsMomentum(Accumulates):
    """Assigns each replica's own gradients to a variable of TensorFlow."""

    def finish(self):
        pass


class OutsideOfItsTape(keras.Model):
    def train_step(self, data):
        with tf.GradientTape() as tape:
            outputs = self(data[0], training=True)
        gradients = tape.gradient(tf.reduce_mean(outputs**2), self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {}


def own_step(kind):
    inputs = keras.Input((6,))
    model = kind(inputs, keras.layers.Dense(1)(inputs))
    model.totals = [tf.Variable(tf.zeros(v.shape), trainable=False, name="total") for v in model.trainable_variables]
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (TakesTheLastRow, DataError, "Received: id 3, for a table of 2 rows.* each of 2 replicas has some of them"),
        (Accumulates, PlanError, "inside a condition or a loop .*gradient_accumulation_steps"),
        (OutsideOfItsTape, ValueError, "^No gradients provided for any variable"),
        (KeepsMomentum, CoupledRowsError, "^total is assigned a value that depends on the rows .*mean_over_replicas"),
    ],
)
def test_a_step_that_several_replicas_cannot_run_is_told_what_to_do(kind, error, message):
    with scope_of(2):
        model = own_step(kind)
    with pytest.raises(error, match=message):
        fit(model, PAIRS[0], PAIRS[0, :, :1], batch_size=4, shuffle=False, verbose=0)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_class_that_the_output_does_not_have_is_named(num_replicas):
    with scope_of(num_replicas):
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, activation="softmax")])
        model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(DataError, match=r"Received: class 3, for an output of 3 classes, which are 0 to 2\. Give"):
        fit(model, PAIRS[0], np.arange(len(PAIRS[0])) % 4, batch_size=4, verbose=0)


def test_variables_without_a_gradient_are_named_as_by_keras():
    with scope_of(2):
        inputs = keras.Input((6,))
        model = keras.Model(inputs, [keras.layers.Dense(1)(inputs), keras.layers.Dense(1, name="unused")(inputs)])
        model.compile("sgd", ["mse", None])
    with pytest.warns(UserWarning, match=r"Gradients do not exist for variables \['unused/kernel', 'unused/bias'\]"):
        fit(model, PAIRS[0], PAIRS[0, :, :1], batch_size=4, verbose=0, check_rows=False)


def test_an_optimizer_that_fails_is_not_taken_for_an_id_beyond_its_table():
    """Keras's own error is an index into the rows of a sparse gradient."""

    def trained(plan):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((5,), dtype="int32")
        pooled = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(20, 6)(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(pooled))
        model.compile(keras.optimizers.RMSprop(centered=True), "mse")
        ids = np.random.default_rng(0).integers(0, 20, (16, 5))
        return fit(model, ids, np.ones((16, 1)), batch_size=16, epochs=5, verbose=0, plan=plan).history["loss"]

    with pytest.raises(PlanError, match=r"RMSprop\(centered=True\).*sum_duplicate_indices"):
        trained(None)
    plan = Plan(strategy="none", devices=("CPU:0",), global_batch_size=16, sum_duplicate_indices=True)
    assert np.isfinite(trained(plan)).all()
