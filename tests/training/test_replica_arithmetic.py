"""Sums over replicas that are easy to get wrong: added losses, position tables, tiny batches, several optimizers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from replica_models import X, Y, assert_equal, batches, sequential, trained

from tfaccel.errors import CoupledRowsError, DataError, PlanError
from tfaccel.training.fit import fit

pytestmark = pytest.mark.usefixtures("logical_devices")


class AddsLosses(keras.layers.Layer):
    """Adds a loss per example, a penalty per weight, a mean over all values, and a mean per feature."""

    def build(self, shape):
        self.w = self.add_weight(shape=(8,), name="w")

    def call(self, x):
        self.add_loss(ops.sum(x**2, axis=1))
        self.add_loss(0.1 * self.w**2)
        self.add_loss(ops.mean(x))
        self.add_loss(ops.mean(x, axis=0))
        return x * ops.sum(self.w)


class Positions(keras.layers.Layer):
    """A position table shared by all examples, and a table that each example indexes."""

    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(6, 1)
        self.tokens = keras.layers.Embedding(5, 6)

    def call(self, x):
        shared = self.table(ops.arange(ops.shape(x)[1]))[None, :, 0]
        return x + shared + self.tokens(ops.cast(x[:, 0] > 0, "int32"))


class Centralized(keras.optimizers.Adam):
    """Clips gradients in `apply_gradients`, which must receive those of the whole batch."""

    def apply_gradients(self, grads_and_vars):
        super().apply_gradients([(tf.clip_by_norm(g, 0.1), v) for g, v in grads_and_vars])


class OwnOptimizer(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(6)
        self.optimizer = keras.optimizers.Adam(0.1)

    def call(self, x):
        return self.dense(x)


class LayerByLayer(keras.Model):
    """Trains each layer with a separate optimizer; logs a metric under another name, and one with several values."""

    def __init__(self):
        super().__init__()
        self.blocks = [OwnOptimizer(), OwnOptimizer()]
        self.tracker = keras.metrics.Mean(name="total")
        self.f1 = keras.metrics.F1Score(name="f1")
        self.compile()

    @property
    def metrics(self):
        return [self.tracker, self.f1]

    def train_step(self, x):
        for block in self.blocks:
            with tf.GradientTape() as tape:
                h = block(x)
                loss = ops.mean((h - 1) ** 2)
            gradients = tape.gradient(loss, block.trainable_weights)
            block.optimizer.apply_gradients(zip(gradients, block.trainable_weights, strict=True))
            x = tf.stop_gradient(h)
        self.tracker.update_state(loss)
        self.f1.update_state(ops.softmax(x[:, :3]), x[:, 3:])  # positive, so that no sum cancels
        return {"loss": self.tracker.result(), "scores": self.f1.result()}


class Keeps(keras.layers.Layer):
    """Stores a tensor and adds a loss, before and after a layer that waits for the other replicas."""

    def call(self, x):
        self.seen = ops.mean(x**2)
        self.add_loss(self.seen)
        return x


class LossesOfLayers(keras.Model):
    """Reads its layers' losses and tensors again after the optimizer update."""

    def __init__(self):
        super().__init__()
        self.layer, self.tracker = Keeps(), keras.metrics.Mean(name="tracked")
        self.dense = keras.layers.Dense(1)
        self.compile(keras.optimizers.SGD(0.05))

    @property
    def metrics(self):
        return [self.tracker]

    def call(self, x):
        return self.layer(self.dense(x))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = ops.mean((self(data[0]) - data[1]) ** 2) + sum(self.losses)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        self.tracker.update_state(sum(self.losses))
        return {"loss": loss, "tracked": self.tracker.result(), "seen": self.layer.seen}


def unreduced():
    """Two outputs, each with a loss that has one value per row."""
    inputs = keras.Input((6,))
    model = keras.Model(inputs, [keras.layers.Dense(2, name=name)(inputs) for name in ("left", "right")])
    losses = [loss(reduction=None) for loss in (keras.losses.MeanSquaredError, keras.losses.MeanAbsoluteError)]
    model.compile(keras.optimizers.Adam(0.02), losses, metrics=["mse", "mae"])
    return model


WITH_ALL = sequential(Positions, AddsLosses, optimizer=lambda: keras.optimizers.Adam(0.02, clipnorm=0.5))
CASES = {
    "added losses and tables": (WITH_ALL, lambda: (batches(X, Y, batch_size=3),), 4),
    "the same with XLA": (
        sequential(Positions, AddsLosses, optimizer=lambda: keras.optimizers.Adam(0.02), jit_compile=True),
        lambda: (batches(X, Y),),
        2,
    ),
    "added losses alone, one row a batch": (sequential(AddsLosses, loss=None), lambda: (batches(X, batch_size=1),), 2),
    "own apply_gradients": (sequential(optimizer=lambda: Centralized(0.02)), lambda: (X, Y), 2),
    "losses around synchronized statistics": (
        sequential(
            Keeps, lambda: keras.layers.BatchNormalization(synchronized=True), lambda: keras.layers.Dense(4), Keeps
        ),
        lambda: (X, Y),
        2,
    ),
    "losses read behind the optimizer": (LossesOfLayers, lambda: (batches(X, Y),), 2),
    "optimizers of layers, logs of other names": (LayerByLayer, lambda: (batches(X),), 2),
    "losses that are not reduced": (unreduced, lambda: (X, [Y, Y]), 3),
}
QUICK = ("losses read behind the optimizer",)


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]
)
def test_replicas_give_what_one_device_gives(name):
    make, data, num_replicas = CASES[name]
    assert_equal(trained(make, num_replicas, *data()), trained(make, 0, *data()), rel=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_fewer_rows_than_replicas_in_every_batch_of_arrays(batch_size):
    make = sequential(Positions)
    assert_equal(trained(make, 4, batch_size=batch_size), trained(make, 0, batch_size=batch_size))


def stateful(batch_size):
    def make():
        inputs = keras.Input(batch_shape=(batch_size, 3, 2))
        outputs = keras.layers.Dense(1)(keras.layers.LSTM(4, stateful=True, name="memory")(inputs))
        model = keras.Model(inputs, outputs)
        model.compile("adam", "mse")
        return model

    return make


@pytest.mark.slow
def test_the_states_of_a_recurrent_layer_stay_with_the_rows_of_a_replica():
    x = np.random.default_rng(0).normal(size=(16, 3, 2)).astype("float32")
    assert_equal(trained(stateful(4), 2, x, Y[:16]), trained(stateful(8), 0, x, Y[:16]))


def test_a_recurrent_layer_is_refused_that_was_built_for_the_global_batch():
    x = np.zeros((16, 3, 2), "float32")
    message = "built for batches of 8 rows .*stateful layers memory.*8 rows are split over 2 replicas.*batch_size=4"
    with pytest.raises(PlanError, match=message):
        trained(stateful(8), 2, x, Y[:16])


def two_inputs():
    one, other = keras.Input((6,)), keras.Input((2,))
    model = keras.Model([one, other], keras.layers.Dense(1)(one) + ops.sum(other))
    model.compile("adam", "mse")
    return model


def test_components_with_other_numbers_of_rows_are_refused():
    sizes = (8, 13)
    specs = ((tf.TensorSpec([None, 6]), tf.TensorSpec([None, 2])), tf.TensorSpec([None, 1]))

    def merged_graphs():
        for size in sizes:
            yield (X[:8], np.ones((size, 2), "float32")), Y[:8]

    data = tf.data.Dataset.from_generator(merged_graphs, output_signature=specs)
    with pytest.raises(DataError, match=r"different numbers of rows: 13, 8.*2 replicas.*ragged tensors"):
        trained(two_inputs, 2, data, check_rows=False)


class TwoStreams(keras.Model):
    """Joins the rows of two streams, and differentiates one of its losses as a vector."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self(X[:1])
        self.compile(keras.optimizers.SGD(0.05))

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        (x, y), others = data
        with tf.GradientTape(persistent=True) as tape:
            outputs = self(tf.concat([x, others], axis=0))
            loss = tf.reduce_mean((y - outputs[: tf.shape(x)[0]]) ** 2)
            each = tf.nn.relu(self(others))[:, 0] * 1e-2
        one, other = tape.gradient(loss, self.trainable_variables), tape.gradient(each, self.trainable_variables)
        self.optimizer.apply([tf.add(*pair) for pair in zip(one, other, strict=True)], self.trainable_variables)
        return {"loss": loss}


def streams(first, second, **options):
    one = tf.data.Dataset.from_tensor_slices((X[:16], Y[:16])).batch(first, **options)
    return tf.data.Dataset.zip(
        one, tf.data.Dataset.from_tensor_slices(np.tile(X, (3, 1))[:48]).batch(second, **options)
    )


@pytest.mark.parametrize("options", [{}, {"drop_remainder": True}])
def test_streams_with_batch_sizes_of_their_own_are_split_each(options):
    assert_equal(*(trained(TwoStreams, num_replicas, streams(8, 24, **options)) for num_replicas in (2, 0)))


@pytest.mark.parametrize("options", [{}, {"drop_remainder": True}])
def test_streams_that_the_replicas_do_not_divide_are_refused(options):
    with pytest.raises(DataError, match=r"different numbers of rows: .*15.* need sizes that 2 divides"):
        trained(TwoStreams, 2, streams(8, 15, **options))


def test_a_distribution_that_keras_ignores_is_warned_of():
    mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], ["cpu:0"])
    layouts = keras.distribution.LayoutMap(mesh)
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch"))
    try:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with pytest.warns(UserWarning, match=r"keras\.distribution does nothing on TensorFlow: ModelParallel is set"):
            fit(model, np.ones((8, 2)), np.ones((8, 1)), verbose=0)
    finally:
        keras.distribution.set_distribution(None)


class ClassCounts(keras.metrics.Metric):
    """How many values are above and below zero: a result with two names."""

    def __init__(self):
        super().__init__(name="counts")
        self.number = self.add_variable((2,), "zeros", dtype="int32", name="number")

    def update_state(self, y_true, y_pred, sample_weight=None):
        above = ops.sum(ops.cast(y_true > 0, "int32"))
        self.number.assign_add(ops.stack([above, ops.size(y_true) - above]))

    def result(self):
        return {"above": self.number[0], "below": self.number[1]}


def test_a_metric_with_several_results_is_evaluated_as_by_keras():
    def results(num_replicas):
        make = sequential(metrics=[ClassCounts])
        history, _ = trained(make, num_replicas, validation_data=(X[:9], Y[:9]))
        return {name: values if name == "counts" else np.asarray(values, float) for name, values in history.items()}

    found, wanted = results(2), results(0)
    assert {"val_above", "val_below"} <= set(wanted)
    assert set(found) == set(wanted)
    for name, values in wanted.items():
        for one, other in zip(keras.tree.flatten(found[name]), keras.tree.flatten(values), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, err_msg=name)


class AddsLogs(keras.Model):
    """Adds to Keras's results a mean over the rows and, if told, one that is none."""

    log_of = staticmethod(lambda logs, outputs: ops.mean(outputs))

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return {**logs, "own": self.log_of(logs, y_pred)}


class AddsLargest(AddsLogs):
    log_of = staticmethod(lambda logs, outputs: ops.max(outputs))


class AddsOfAMetric(AddsLogs):
    log_of = staticmethod(lambda logs, outputs: 2 * logs["loss"])


def with_logs(kind):
    def make():
        inputs = keras.Input((6,))
        model = kind(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse", metrics=["mae"])
        return model

    return make


@pytest.mark.parametrize("kind", [AddsLogs, AddsOfAMetric])
def test_results_beside_own_logs_are_those_of_all_replicas(kind):
    data = {"validation_data": (X[:9], Y[:9])}
    assert_equal(trained(with_logs(kind), 2, **data), trained(with_logs(kind), 0, **data))


class ReportsNothing(keras.Model):
    returned: dict | None = {}

    def train_step(self, data):
        super().train_step(data)
        return self.returned


class ReturnsNothing(ReportsNothing):
    returned = None


@pytest.mark.parametrize("kind", [ReportsNothing, ReturnsNothing])
def test_a_step_that_reports_nothing_trains_and_has_no_results(kind):
    """As Keras's eager step does; its graph cannot return nothing."""
    _, weights = trained(with_logs(keras.Model), 0)
    for num_replicas in (1, 2):
        assert_equal(trained(with_logs(kind), num_replicas), ({}, weights))


def test_a_log_that_is_no_mean_is_named():
    with pytest.raises(CoupledRowsError, match=r"^Log 'own' of AddsLargest.compute_metrics is not a mean"):
        trained(with_logs(AddsLargest), 2)


def mean_over_positives(y_true, y_pred):
    counted = ops.cast(y_true > 0, "float32")
    return ops.sum(counted * (y_true - y_pred) ** 2) / ops.sum(counted)


def test_a_loss_of_which_only_the_gradients_differ_is_computed_from_all_rows():
    """Every row's loss is 1 at first, so that the loss is, too, however many rows a replica counts."""

    def make():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(0.01), mean_over_positives)
        return model

    y = np.array([[1, -1, -1, -1, 1, 1, 1, -1] * 2], "float32").T
    assert_equal(trained(make, 2, X[:16], y), trained(make, 0, X[:16], y))
