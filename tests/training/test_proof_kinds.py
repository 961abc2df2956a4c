"""What comparing a step of several replicas with one device's finds, by kind of state, and what is rounding."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from proof_models import OwnModel, fitted
from replica_models import X, Y, scope_of

from tfaccel.benchmarks.compilation_suite import six_convolutions
from tfaccel.errors import CoupledRowsError
from tfaccel.training.evaluate import evaluate
from tfaccel.training.fit import fit
from tfaccel.training.proof.differences import Tolerance, difference, is_noise, without_multiple

pytestmark = pytest.mark.usefixtures("logical_devices")

TOLERANCE = Tolerance(5e-4, 1e-4)
INF, NAN = np.inf, np.nan


def test_a_layer_in_16_bits_counts_wherever_it_is():
    def nested(policy):
        inner = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, dtype=policy)])
        return keras.Sequential([inner, keras.layers.Dense(1)])

    wide, exact = (Tolerance.of_model(nested(policy)) for policy in ("mixed_bfloat16", "float32"))
    assert wide.of_value > 10 * exact.of_value


@pytest.mark.parametrize(
    ("before", "one", "many", "differs"),
    [
        ([-INF, -INF], [3.0, -INF], [3.0, -INF], False),
        ([-INF, -INF], [3.0, -INF], [2.0, -INF], True),  # the largest value so far of each class
        ([INF, INF], [3.0, 1.0], [3.0, 2.0], True),
        ([0.0, 0.0], [NAN, 1.0], [0.5, 1.0], False),  # one device has failed there
        ([0.0, 0.0], [NAN, 1.0], [NAN, 0.5], True),
        ([0.0, 0.0], [1.0, 1.0], [NAN, 1.0], True),
        ([0j, 0j], [1j, 2j], [1j * (1 + 1e-7), 2j], False),
        ([0j, 0j], [1j, 2j], [1.01j, 2j], True),
    ],
)
def test_values_that_are_finite_are_compared(before, one, many, differs):
    before, one, many = (np.array(value) for value in (before, one, many))
    assert difference(before, one, one, many, TOLERANCE, has_slots=False)[0] == differs
    if not np.isinf(one).any():
        assert TOLERANCE.of_output(many, one)[0] == differs
    if one.dtype.kind == "f":
        assert TOLERANCE.of_log(many, one)[0] == differs


def test_an_average_of_a_weight_has_a_fraction_of_its_rounding():
    rng = np.random.default_rng(0)
    one, noise = rng.normal(size=8), 1e-3 * rng.normal(size=8)
    for many, is_explained in [(one + 0.01 * noise, True), (one + 1e-5, False), (one + 2 * noise, False)]:
        left = np.abs(without_multiple(many, one, [noise]) - one).max()
        assert (left < 1e-12) == is_explained


@pytest.mark.parametrize(("nothing", "expected"), [(1e-5, [False, False]), (2e-2, [True, False])])
def test_more_gradients_are_nothing_in_16_bits(nothing, expected):
    slots = [("momentum", np.array([1e-3, 0.5]), 1.0), ("velocity", np.array([1e-6, 0.25]), 1.0)]
    assert is_noise(slots, Tolerance(0.1, 0.02, nothing=nothing)).tolist() == expected


traced = {"steps": 0}


def note_a_trace():
    traced["steps"] += 1


class CountsInATable(OwnModel):
    def keep(self):
        self.table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)

    def after(self, x):
        first = tf.constant([0], tf.int64)
        self.table.insert(first, self.table.lookup(first) / 2 + tf.cast(tf.shape(x)[:1], tf.float32))


class NotesATable(CountsInATable):
    def after(self, x):
        self.table.insert(tf.constant([1, 0], tf.int64), [2.0, 3.0])


class NotesADenseTable(OwnModel):
    """Of such a table the order of the buckets matters, and most of them are empty."""

    def keep(self):
        options = {"empty_key": -1, "deleted_key": -2, "initial_num_buckets": 8}
        self.table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.float32, 0.0, **options)

    def after(self, x):
        step = tf.cast(self.optimizer.iterations, tf.int64)
        self.table.insert(step[None] + 10, [1.0])
        self.table.erase(step[None] + 8)


def test_a_dense_table_is_left_as_the_steps_have_filled_it():
    keys = tf.constant([10, 11, 12, 13, 14], tf.int64)
    model = fitted(NotesADenseTable, epochs=2)
    assert (model.table.lookup(keys).numpy().tolist(), int(model.table.size())) == ([0.0, 0.0, 0.0, 1.0, 1.0], 2)


class CountsByARegularizer(OwnModel):
    """Its variable was created before the scope."""

    steps = None

    def layers_of_net(self):
        def penalty(weights):
            self.steps.assign_add(1.0)
            return 0.01 * tf.reduce_sum(weights**2)

        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, kernel_regularizer=penalty)])

    def get_loss(self, x, y):
        return super().get_loss(x, y) + tf.add_n(self.net.losses)


def test_a_variable_from_outside_the_scope_is_named():
    counts = type("Counts", (CountsByARegularizer,), {"steps": tf.Variable(0.0, name="penalties")})
    with pytest.raises(CoupledRowsError, match=r"^penalties, created outside .* within\), is assigned by each replica"):
        fitted(counts)


class WritesAText(OwnModel):
    def keep(self):
        self.text = tf.Variable("")

    def after(self, x):
        self.text.assign(tf.strings.as_string(tf.shape(x)[0]))


class CountsTwice(OwnModel):
    """Another variable of the same name moves by so much that the number of rows is nothing beside it."""

    def keep(self):
        self.pixels = self.add_weight(shape=(), initializer="zeros", trainable=False, name="pixel_count")
        self.rows = self.add_weight(shape=(), initializer="zeros", trainable=False, name="row_count")

    def after(self, x):
        self.pixels.assign_add(1e8)
        self.rows.assign_add(tf.cast(tf.shape(x)[0], tf.float32))


class CountsByClass(CountsTwice):
    def keep(self):
        self.pixels = self.add_weight(shape=(2,), initializer="zeros", trainable=False, name="pixel_count")
        self.rows = self.add_weight(shape=(2,), initializer="zeros", trainable=False, name="row_count")

    def after(self, x):
        self.pixels.assign_add([1e8, 1e8])
        self.rows.assign_add(tf.reduce_sum(tf.cast(x[:, :2] > 0, tf.float32), axis=0))


class HasTwoOfOneName(OwnModel):
    """The last variable of the name is the same on all replicas."""

    def keep(self):
        self.rows, self.steps = tf.Variable(0.0, name="count"), tf.Variable(0.0, name="count")

    def after(self, x):
        self.rows.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
        self.steps.assign_add(1.0)


class SubtractsGradients(OwnModel):
    """The optimizer is left out of it."""

    optimizer_of_step = staticmethod(lambda: keras.optimizers.SGD(0.01, momentum=0.9))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.get_loss(*data)
        for weight, gradient in zip(self.net.weights, tape.gradient(loss, self.net.trainable_variables), strict=True):
            weight.assign_sub(0.01 * gradient)
        self.metrics[0].update_state(loss)
        return {"loss": self.metrics[0].result()}


class MovesItsLearningRate(OwnModel):
    optimizer_of_step = staticmethod(lambda: keras.optimizers.SGD(0.01))

    def after(self, x):
        self.optimizer.learning_rate.assign(0.01 + 0.001 * tf.reduce_mean(x))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (CountsInATable, "lookup table 0"),
        (MovesItsLearningRate, r"^sgd\w*/learning_rate is assigned"),
        (SubtractsGradients, r"differ in 2 variables \("),
        (WritesAText, "^Variable is assigned"),
        (CountsTwice, "row_count"),
        (CountsByClass, "row_count"),
        (HasTwoOfOneName, r"differ in 1 variable \(count\)"),
    ],
)
def test_state_of_own_rows_is_refused(make, name):
    with pytest.raises(CoupledRowsError, match=name):
        fitted(make)


class AdaptsToItsRows(OwnModel):
    """Its rate is 0 where the mean over a batch's rows is not positive, whatever that over a replica's rows is."""

    def keep(self):
        self.rate = self.add_weight(shape=(), initializer="zeros", trainable=False, name="rate")

    def after(self, x):
        self.rate.assign(tf.nn.relu(self.rate + tf.reduce_mean(x)))


class AdaptsAVariable(AdaptsToItsRows):
    def keep(self):
        self.rate = tf.Variable(0.0, trainable=False)


@pytest.mark.parametrize(("make", "name"), [(AdaptsToItsRows, "rate"), (AdaptsAVariable, "Variable")])
@pytest.mark.parametrize("watched", [True, False])
def test_state_of_own_rows_is_refused_that_steps_between_those_compared_tell_apart(make, name, watched):
    x = np.zeros((160, 4), "float32")
    batch = x[2 * 8 :] if watched else x[18 * 8 :]  # neither is compared, and of the second epoch no later one is
    batch[:1], batch[1:8] = 5.0, -1.0
    was = make.after

    class InSecondEpoch(make):
        def keep(self):
            super().keep()
            self.begun = keras.Variable(float(watched), trainable=False)

        def after(self, x):
            was(self, self.begun * x)

    with scope_of(2):
        model = InSecondEpoch()
        model(x[:1])
    begin = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: model.begun.assign(float(watched or epoch))
    )
    watch = [keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)] * watched
    with pytest.raises(CoupledRowsError, match=rf"(^|/){name} is assigned .* hold values of it that differ"):
        fit(model, x, x[:, :3], batch_size=8, epochs=2, shuffle=False, verbose=0, callbacks=[begin, *watch])


class Codebook(keras.layers.Layer):
    """Its codes are weights that are trained, but get no gradient."""

    def build(self, shape):
        self.codes = self.add_weight(shape=shape[1:], name="codes")

    def call(self, x, training=False):
        moved = x + tf.stop_gradient(self.codes.value)
        if training:
            self.codes.assign(0.9 * self.codes + 0.1 * keras.ops.mean(x, axis=0))
        return moved


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_what_a_layer_assigns_to_a_trained_weight_is_named():
    def make():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), Codebook(), keras.layers.Dense(3)])
        model.compile("adam", "mse")
        return model

    with pytest.raises(CoupledRowsError, match=r"codes is changed by .* or a layer assigns it, .* in 1 variable \("):
        fitted(make)


def test_what_cannot_be_put_back_is_not_run_again(caplog):
    class Takes(OwnModel):
        def keep(self):
            self.queue = tf.queue.FIFOQueue(100, ["int32"], [()])

        def after(self, x):
            self.queue.enqueue(1)

    caplog.set_level("INFO", logger="tfaccel")
    assert int(fitted(Takes).queue.size()) == 2 * 2  # steps and replicas
    assert "cannot be put back (QueueEnqueueV2" in caplog.text


class MeanTeacher(OwnModel):
    """A bias in front of a normalization moves by rounding alone, and its average with it."""

    optimizer_of_step = staticmethod(lambda: keras.optimizers.Adam(1e-3))

    def layers_of_net(self):
        normalization = keras.layers.BatchNormalization(synchronized=True)
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(6), normalization, keras.layers.Dense(3)])

    def keep(self):
        self.teacher = self.layers_of_net()
        self.teacher.trainable = False

    def after(self, x):
        for average, weight in zip(self.teacher.weights, self.net.weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)


class DrawsWhileTraced(OwnModel):
    """Its numbers are constants of the graph, others on each replica."""

    def get_loss(self, x, y):
        return super().get_loss(x * random.choice([0.5, 2.0, 3.0]) * np.random.beta(0.4, 0.4), y)


class CountsSteps(OwnModel):
    def keep(self):
        self.steps = tf.Variable(0.0)

    def after(self, x):
        self.steps.assign_add(1.0)


class DrawsFromAGenerator(OwnModel):
    def keep(self):
        self.numbers = tf.random.Generator.from_seed(1)

    def get_loss(self, x, y):
        return super().get_loss(x + 0.1 * self.numbers.normal(tf.shape(x)), y)


def with_momentum():
    normalization = keras.layers.BatchNormalization(synchronized=True)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6), normalization, keras.layers.Dense(3)])
    model.compile(keras.optimizers.RMSprop(momentum=0.9), "mse")
    return model


def in_16_bits(policy):
    def make():
        first = keras.layers.Dense(6, dtype=policy)
        normalization = keras.layers.BatchNormalization(synchronized=True, dtype=policy)
        last = keras.layers.Dense(3, dtype=policy)
        model = keras.Sequential([keras.Input((4,)), first, normalization, last])
        model.compile(keras.optimizers.Adam(1e-3), "mse")
        return model

    return make


@pytest.mark.parametrize(
    "make",
    [
        in_16_bits("mixed_float16"),
        in_16_bits("mixed_bfloat16"),
        NotesATable,
        MeanTeacher,
        DrawsFromAGenerator,
        DrawsWhileTraced,
        CountsSteps,
        with_momentum,
    ],
)
def test_what_is_right_is_not_refused(make, caplog):
    caplog.set_level("INFO", logger="tfaccel")
    fitted(make)
    assert "training: 2 replicas = 1 device" in caplog.text


class Center(keras.layers.Layer):
    """A moving mean that Keras takes over the replicas whenever it is assigned, for which they wait."""

    def build(self, shape):
        options = {"initializer": "zeros", "trainable": False, "aggregation": "mean"}
        self.center = self.add_weight(shape=(shape[-1],), name="center", **options)

    def call(self, x, training=False):
        if training:
            self.center.assign(0.9 * self.center + 0.1 * keras.ops.mean(x, axis=0))
        return x


@pytest.mark.parametrize("num_rows", [16, 13])
def test_what_is_averaged_when_it_is_assigned_is_that_of_one_device_or_refused(num_rows):
    def fitted(replicas):
        with scope_of(replicas):
            model = keras.Sequential([keras.Input((6,)), Center(), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        (fit if replicas else keras.Model.fit)(model, X[:num_rows], Y[:num_rows], batch_size=8, verbose=0)
        return model.layers[0].center.numpy()

    if num_rows == 13:  # the last batch has three rows on a replica, and two on the other
        with pytest.raises(CoupledRowsError, match="center is assigned a value that depends on the rows"):
            fitted(2)
    else:
        np.testing.assert_allclose(fitted(2), fitted(0), rtol=1e-5)


class MixesRows(keras.layers.Layer):
    def call(self, x):
        return x * (1.0 + keras.ops.mean(x))


@pytest.mark.parametrize("kind", ["plain", "draws", "mixes rows"])
def test_gradients_that_overflow_on_one_replica_only_are_compared_with_a_lower_loss_scale(kind, caplog):
    """The sum over all rows is finite in 16 bits, and that over the first replica's is not."""
    caplog.set_level("INFO", logger="tfaccel")
    keras.utils.set_random_seed(0)
    with scope_of(2):
        dense = keras.layers.Dense(1, use_bias=False, dtype="mixed_float16")
        others = {"plain": [], "draws": [keras.layers.Dropout(1e-6)], "mixes rows": [MixesRows()]}
        model = keras.Sequential([keras.Input((1,)), dense, *others[kind]])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=2.0**16)
        model.compile(optimizer, loss=lambda y, prediction: prediction[:, 0])
    x, before = np.array([[3.0], [-2.0]], "float32"), model.get_weights()[0]
    if kind == "mixes rows":
        with pytest.raises(CoupledRowsError, match="mixes the rows"):
            fit(model, x, x, batch_size=2, verbose=0)
        return
    fit(model, x, x, batch_size=2, verbose=0)
    assert "training: 2 replicas = 1 device" in caplog.text
    assert keras.ops.convert_to_numpy(model.optimizer.dynamic_scale) == 2.0**15
    np.testing.assert_array_equal(model.get_weights()[0], before)


class Traced(OwnModel):
    """Counts in Python how often it is traced."""

    def keep(self):
        self._times, self.flag, self.names, self.numbers = 0, False, "", np.zeros(1)
        self.nested = {"times": [0]}
        traced["steps"] = 0

    def after(self, x):
        self._times += 1
        self.flag, self.names = not self.flag, self.names + "step "
        self.numbers += 1
        self.nested["times"][0] += 1
        note_a_trace()


def test_python_code_of_a_step_is_seen_as_often_as_without_the_proof():
    def seen(**options):
        model = fitted(Traced, **options)
        return model._times, model.flag, model.names, float(model.numbers[0]), model.nested["times"], dict(traced)

    assert seen() == seen(check_rows=False)


def test_what_other_kernels_round_is_not_refused(caplog):
    """XLA rounds what a layer gives otherwise than TensorFlow's kernels, which moves some ReLU over its bend."""
    caplog.set_level("INFO", logger="tfaccel")
    images = np.random.default_rng(0).normal(size=(16, 32, 32, 3)).astype("float32")
    keras.utils.set_random_seed(0)
    with scope_of(2):
        model = six_convolutions()
    fit(model, images, np.arange(16) % 10, batch_size=16, verbose=0)
    assert "training: 2 replicas = 1 device" in caplog.text


def test_training_goes_on_after_a_call_whose_data_did_not_fit():
    with scope_of(2):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 3"):
        fit(model, x[:, :2], y, verbose=0)
    assert fit(model, x, y, verbose=0).history["loss"]
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 3"):
        evaluate(model, x[:, :2], y, verbose=0)
    assert np.isfinite(evaluate(model, x, y, verbose=0))
