"""On several replicas, code that couples the rows of a batch is gathered or raises an error that names it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from replica_models import (
    Centred,
    Maximum,
    MergedMaximum,
    OwnStep,
    X,
    Y,
    assert_equal,
    batches,
    contrastive,
    scope_of,
    sequential,
    trained,
)

from tfaccel.data.feeds import IteratorBatches, IteratorFeed
from tfaccel.errors import CoupledRowsError
from tfaccel.training.evaluate import evaluate, predict
from tfaccel.training.fit import fit
from tfaccel.training.private.private_models import build_model
from tfaccel.training.steps.engine import get_engine
from tfaccel.training.steps.merged_metrics import GATHERED

pytestmark = pytest.mark.usefixtures("logical_devices")


def by_speed(cases, quick):
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in cases]


class Coupled(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.square(ops.matmul(y_pred, ops.transpose(y_pred))))


class CentresAll(keras.Model):
    """Takes the mean over the batch in its own `call`, outside of any layer."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)
        self.compile("adam", "mse")

    def call(self, x):
        outputs = self.dense(x)
        return outputs - ops.mean(outputs, axis=0)


def own_compute_loss():
    model = Coupled([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("adam")
    return model


def unreduced(reduce):
    """A custom loss of an `OwnStep` that reduces the values of one of Keras's losses itself."""
    return lambda y, z: reduce(keras.losses.MeanSquaredError(reduction="none")(tf.ones_like(z), z))


class Averages(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(keras.losses.MeanSquaredError(reduction=None)(y_pred * 0.5, y_pred))


def own_mean():
    model = Averages([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("adam")
    return model


class OwnMasks(keras.Model):
    """Divides by the number of tokens in the batch, after dropout, in a custom `train_step`."""

    def __init__(self):
        super().__init__()
        self.embed, self.dropout = keras.layers.Embedding(9, 4), keras.layers.Dropout(0.5)
        self.dense = keras.layers.Dense(9)
        self.compile("adam")

    def call(self, tokens, training=False):
        return self.dense(self.dropout(self.embed(tokens), training=training))

    def train_step(self, tokens):
        with tf.GradientTape() as tape:
            per_token = tf.nn.sparse_softmax_cross_entropy_with_logits(tokens, self(tokens, training=True))
            mask = tf.cast(tokens > 0, tf.float32)
            loss = tf.reduce_sum(per_token * mask) / tf.reduce_sum(mask)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class TracksBoth(OwnStep):
    """Its tracker gets the mean of a batch, and values by row, as `compiled_metrics.update_state` does to all means."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of_rows(y, self.dense(x))
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        self.tracker.update_state(loss)
        self.tracker.update_state(self.dense(x))
        return {"total": self.tracker.result()}


class AddsProduct(keras.layers.Layer):
    def call(self, x):
        self.add_loss(ops.sum(ops.mean(x, axis=0) * ops.mean(ops.square(x), axis=0)))
        return x


class SumsSoFar(keras.layers.Layer):
    """Adds the rows before each row."""

    def call(self, x):
        return x + 0.1 * ops.cumsum(x, axis=0)


class NormalizesGradients(keras.layers.Layer):
    """Its output for a row is its own; the gradient is divided by its norm over all rows."""

    def call(self, x):
        @tf.custom_gradient
        def normalized(x):
            return tf.identity(x), lambda gradient: gradient / tf.norm(gradient)

        return normalized(x)


class BesideTheGradient(keras.layers.Layer):
    """What its layers give reaches the output by a lookup, and not at all."""

    def __init__(self):
        super().__init__()
        self.dense, self.unused = keras.layers.Dense(3), keras.layers.Dense(3, trainable=False)

    def call(self, x):
        looked_up = tf.gather(self.dense(x), tf.range(tf.shape(x)[0]))
        return looked_up + tf.stop_gradient(self.unused(x))


class LargestVariable(Maximum):
    """Returns its variable itself, as metrics in guides do."""

    def result(self):
        return self.largest


REFUSED = {
    "layer": (sequential(lambda: Centred(name="centring")), r"Layer 'centring' \(Centred\) mixes the rows"),
    "layer of earlier rows": (sequential(lambda: SumsSoFar(name="sums")), r"Layer 'sums' \(SumsSoFar\) mixes the rows"),
    "layer's backward pass": (
        sequential(lambda: keras.layers.Dense(3), lambda: NormalizesGradients(name="normal")),
        r"Layer 'normal' \(NormalizesGradients\) mixes the rows of a batch in its backward pass",
    ),
    "backward pass behind layers without a gradient": (
        sequential(
            BesideTheGradient,
            lambda: NormalizesGradients(name="normal"),
        ),
        r"Layer 'normal' \(NormalizesGradients\) mixes the rows of a batch in its backward pass",
    ),
    "call of the model": (CentresAll, r"CentresAll\.call mixes the rows of a batch"),
    "compute_loss": (own_compute_loss, r"Coupled.compute_loss is not a mean"),
    "added loss": (sequential(lambda: AddsProduct(name="adds")), r"added by layer 'adds' \(AddsProduct\)"),
    "own step that sums": (
        lambda: OwnStep(lambda y, z: tf.reduce_sum((z - 1) ** 2)),
        r"gradients that OwnStep.train_step applies are not means",
    ),
    "own step that compares": (
        lambda: OwnStep(lambda y, z: tf.reduce_mean(contrastive(y, z))),
        r"gradients that OwnStep.train_step applies are not means",
    ),
}


QUICK_TO_REFUSE = (
    "layer",
    "layer's backward pass",
    "backward pass behind layers without a gradient",
    "call of the model",
    "compute_loss",
    "own step that sums",
)


@pytest.mark.parametrize("name", by_speed(REFUSED, QUICK_TO_REFUSE))
def test_coupled_rows_are_refused_by_name(name):
    make, message = REFUSED[name]
    with pytest.raises(CoupledRowsError, match=message) as caught:
        trained(make, 2)
    assert "2 replicas" in str(caught.value) and "tfaccel.ops.all_gather_rows" in str(caught.value)


def test_what_divides_by_the_padding_of_a_batch_is_refused():
    tokens = tf.constant([[1, 2, 3, 4]] * 12 + [[5, 0, 0, 0]] * 4)  # the first rows are all the same
    with pytest.raises(CoupledRowsError, match=r"OwnMasks\.train_step applies are not means"):
        trained(OwnMasks, 2, tf.data.Dataset.from_tensors(tokens))


class OwnTestStep(keras.Sequential):
    """Couples the rows in evaluation only."""

    def test_step(self, data):
        x, _ = data
        y = self(x, training=False)
        return {"distance": tf.reduce_mean(tf.abs(y - tf.reduce_max(y, axis=0)))}


def own_test_step():
    model = OwnTestStep([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("adam", "mse")
    return model


def test_coupled_rows_are_refused_in_evaluation_and_prediction():
    with scope_of(2):
        model, centred = own_test_step(), sequential(lambda: Centred(name="centring"))()
    with pytest.raises(
        CoupledRowsError, match=r"Log 'distance' of OwnTestStep\.test_step is neither a metric's result nor a mean"
    ):
        evaluate(model, X, Y, verbose=0)
    with pytest.raises(CoupledRowsError, match=r"Layer 'centring'.* each of which sees only its own"):
        predict(centred, X, verbose=0)
    assert predict(model, X, verbose=0).shape == (21, 3)
    assert predict(centred, X, verbose=0, check_rows=False).shape == (21, 1)
    assert evaluate(centred, X, Y, verbose=0, check_rows=False) > 0
    for verb in (evaluate, fit):  # skipping the check in one call does not skip it in the next
        with pytest.raises(CoupledRowsError, match=r"Layer 'centring'"):
            verb(centred, X, Y, verbose=0)


class Asking(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        with pytest.raises(CoupledRowsError):
            predict(self.model, X, verbose=0)


def test_the_check_stays_left_out_whatever_is_called_in_between():
    with scope_of(2):
        centred = sequential(lambda: Centred(name="centring"))()
    history = fit(centred, X, Y, epochs=2, verbose=0, check_rows=False, callbacks=[Asking()])
    assert len(history.history["loss"]) == 2


@pytest.mark.slow
def test_the_check_can_be_left_out():
    history, _ = trained(sequential(loss=contrastive, units=5), 2, epochs=1, check_rows=False)
    assert history["loss"]


EQUAL = {
    "own mean of unreduced values": own_mean,
    "own step with their mean": lambda: OwnStep(unreduced(tf.reduce_mean)),
    "own step with the values": lambda: OwnStep(unreduced(tf.identity)),
    "loss that compares": sequential(loss=contrastive, units=5),
    "loss that compares, XLA": sequential(loss=contrastive, units=5, jit_compile=True),
    "loss that sums": sequential(loss=lambda y, p: tf.reduce_sum((y - p) ** 2)),
    "loss of the hardest rows": sequential(
        loss=lambda y, p: tf.reduce_mean(tf.math.top_k(tf.reduce_sum((y - p) ** 2, axis=-1), 3)[0])
    ),
    "flattened Dice": sequential(loss=lambda y, p: 1 - (2 * tf.reduce_sum(y * p) + 1) / (tf.reduce_sum(y + p) + 1)),
    "gathered loss": sequential(loss=lambda y, z: contrastive(y, z, gather=True), units=5),
    "gathered loss and XLA": sequential(loss=lambda y, z: contrastive(y, z, gather=True), units=5, jit_compile=True),
    "gathered loss of an own step": lambda: OwnStep(lambda y, z: tf.reduce_mean(contrastive(y, z, gather=True))),
    "vector as loss of an own step": lambda: OwnStep(lambda y, z: tf.reduce_sum((z - 1) ** 2, axis=1)),
    "tracker of a mean and of values": lambda: TracksBoth(lambda y, z: tf.reduce_mean((z - y) ** 2)),
    "own step with the sum of unreduced values": lambda: OwnStep(unreduced(tf.reduce_sum)),
    "reduction by sum": sequential(loss=keras.losses.MeanSquaredError(reduction="sum")),
    "metrics that add up": sequential(
        metrics=[
            keras.metrics.MeanAbsoluteError,
            keras.metrics.R2Score,
            keras.metrics.RootMeanSquaredError,
            lambda: keras.metrics.AUC(name="auc"),
        ]
    ),
    "metric that is gathered": sequential(metrics=[Maximum]),
    "metric that returns its variable": sequential(metrics=[LargestVariable]),
    "metric that merges itself": sequential(metrics=[MergedMaximum]),
    "metric function that is no mean": sequential(
        metrics=[lambda: keras.metrics.MeanMetricWrapper(lambda y, p: ops.max(p), name="largest")]
    ),
}


QUICK = ("gathered loss", "tracker of a mean and of values")


@pytest.mark.parametrize("name", by_speed(EQUAL, QUICK))
@pytest.mark.parametrize("num_replicas", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_replicas_give_what_one_device_gives(name, num_replicas):
    assert_equal(trained(EQUAL[name], num_replicas), trained(EQUAL[name], 0))


@pytest.mark.slow
def test_rows_are_gathered_where_replicas_have_none():
    make = EQUAL["gathered loss"]
    assert_equal(trained(make, 4, batches(X, Y, batch_size=3)), trained(make, 0, batches(X, Y, batch_size=3)))


def test_a_loss_may_need_more_rows_than_a_replica_has():
    third = sequential(loss=lambda y, p: tf.reduce_mean(tf.gather((y - p) ** 2, [0, 2])))  # fails while it runs
    assert_equal(trained(third, 4, batches(X, Y)), trained(third, 0, batches(X, Y)))


def test_a_batch_that_the_replicas_augment_is_compared_in_the_graph_of_all_batches():
    with scope_of(2):
        model = sequential(loss=lambda y, p: tf.reduce_mean((y - p) ** 2, axis=-1))()
    doubled = IteratorBatches(augment=lambda batch: (2.0 * batch[0], batch[1]))
    feed = IteratorFeed(batches(X, Y), doubled)
    build_model(model, feed.spec)
    engine = get_engine(model)
    assert engine.checks.compare("train", feed, loop=True).num_steps == 1
    assert engine.run("train", feed, 1).num_steps == 1
    assert engine.num_graphs("train") == 1
    assert feed.num_used == 2


@pytest.mark.slow
def test_dropout_and_noise_do_not_count_as_coupling():
    noisy = sequential(
        lambda: keras.layers.Dense(32), lambda: keras.layers.Dropout(0.5), keras.layers.BatchNormalization
    )
    trained(noisy, 2, epochs=1)
    step = lambda: OwnStep(lambda y, z: tf.reduce_mean((z - keras.random.normal(tf.shape(z))) ** 2))  # noqa: E731
    trained(step, 2, epochs=1)


class Critic(keras.Model):
    """A generator, of whose noise constants make rows that are all the same, and its last layer normalizes them."""

    def __init__(self):
        super().__init__()
        large = keras.initializers.RandomNormal(stddev=1e4)
        layers = [keras.layers.Dense(5, kernel_initializer=large), keras.layers.BatchNormalization(synchronized=True)]
        self.generator = keras.Sequential([keras.Input((6,)), *layers])
        self.critic = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        self.compile("adam")

    def call(self, x):
        return self.critic(self.generator(x))

    def train_step(self, x):
        with tf.GradientTape() as tape:
            made = self.generator(tf.random.normal(tf.shape(x)), training=True)
            loss = -tf.reduce_mean(self.critic(made))
        weights = self.generator.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def test_normalized_noise_does_not_count_as_coupling():
    trained(Critic, 2, tf.data.Dataset.from_tensor_slices(X).batch(6, drop_remainder=True), epochs=1)


@pytest.mark.slow
def test_random_numbers_are_never_mistaken_for_coupling():
    weights, rng = Y[:16, 0] + 0.5, np.random.default_rng(2)
    for _ in range(5):
        with scope_of(2):
            model = sequential(lambda: keras.layers.Dense(12), lambda: keras.layers.Dropout(0.4, seed=7), units=3)()
            noisy = OwnStep(lambda y, z: tf.reduce_mean((z - tf.random.normal(tf.shape(z), y)) ** 2))
        x, y = rng.normal(size=(16, 6)).astype("float32"), rng.normal(size=(16, 3)).astype("float32")
        fit(model, x, y, sample_weight=weights, batch_size=16, verbose=0)
        fit(noisy, x, y[:, :1], batch_size=16, verbose=0)
        assert get_engine(model).checks.proofs["train"].holds and get_engine(noisy).checks.proofs["train"].holds


@pytest.mark.slow
def test_only_metrics_that_need_it_are_gathered():
    kept = []

    def make():
        model = sequential(metrics=[Maximum, keras.metrics.MeanAbsoluteError])()
        kept.append(model)
        return model

    trained(make, 2, epochs=1)
    assert [metric.name for metric in kept[0].metrics[1].metrics if metric in GATHERED] == ["maximum"]


class LargestRows(keras.metrics.Metric):
    """Adds up the six largest of a batch's predictions: four rows have none."""

    def __init__(self):
        super().__init__(name="largest")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(ops.top_k(y_pred[:, 0], 6)[0]))

    def result(self):
        return self.total + 0.0


def functional(loss, metrics):
    x = keras.Input((6,))
    model = keras.Model(x, keras.layers.Dense(1)(x))
    model.compile("sgd", loss, metrics=metrics)
    return model


def mean_of_largest(y, y_pred):
    return ops.mean(ops.top_k(ops.square(y - y_pred)[:, 0], 6)[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: functional("mse", [LargestRows()]),
        sequential(metrics=[LargestRows, lambda: mean_of_largest]),
        lambda: functional(mean_of_largest, [LargestRows()]),
    ],
)
def test_metrics_and_losses_that_need_more_rows_than_a_replica_has_get_those_of_all(make):
    data = (X[:16], Y[:16])
    assert_equal(trained(make, 2, *data, validation_data=data), trained(make, 0, *data, validation_data=data))


class UpdatesAllMetrics(keras.Sequential):
    """Updates means with the values of each row, and with a number: the tracker of its loss, and another one."""

    def __init__(self):
        super().__init__([keras.Input((6,)), keras.layers.Dense(3)])
        self.compile("sgd", "mse")
        self.other = keras.metrics.Mean(name="other")

    def train_step(self, data):
        super().train_step(data)
        outputs = self(data[0])
        self.metrics[0].update_state(outputs)
        self.other.update_state((data[1] - outputs) ** 2)
        self.other.update_state(tf.reduce_mean(outputs**2))
        return {"mean": self.metrics[0].result(), "other": self.other.result()}


def test_a_mean_of_rows_and_numbers_is_that_of_one_device():
    assert_equal(trained(UpdatesAllMetrics, 2), trained(UpdatesAllMetrics, 0))
