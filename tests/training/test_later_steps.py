"""What couples the rows of later batches only is found in them; comparing steps changes and shows nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replica_models import Centred, assert_equal, scope_of, sequential, trained

from tfaccel.errors import CoupledRowsError
from tfaccel.training.evaluate import evaluate, predict
from tfaccel.training.fit import fit, plan_of_model
from tfaccel.training.run.resume import Resume
from tfaccel.training.steps.engine import get_engine

pytestmark = pytest.mark.usefixtures("logical_devices")

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(64, 6)).astype("float32"), RNG.normal(size=(64, 1)).astype("float32")
LATE = Y.copy()
LATE[24:62:3] = np.nan  # nothing is missing in the first batches
MARKED = np.where(np.isnan(LATE), 9.0, LATE).astype("float32")
layers, ops = keras.layers, keras.ops


def present(y):
    return tf.cast(~tf.math.is_nan(y), tf.float32), tf.where(tf.math.is_nan(y), 0.0, y)


def mean_of_present(y, p):
    there, y = present(y)
    return tf.reduce_sum(there * (y - p) ** 2) / tf.reduce_sum(there)


def above_a_margin(y, p):
    return tf.reduce_mean((y - p) ** 2) + tf.math.reduce_std(p) * tf.maximum(tf.reduce_max(y) - 5, 0.0)


EQUAL = {
    "loss over targets that are missing later": (sequential(loss=mean_of_present), LATE),
    "metric over targets that are missing later": (
        sequential(
            loss=lambda y, p: (present(y)[1] - p) ** 2,
            metrics=[lambda: keras.metrics.MeanMetricWrapper(mean_of_present, name="of_present")],
        ),
        LATE,
    ),
    "loss of a coupled part that is inactive at first": (sequential(loss=above_a_margin), MARKED),
}


@pytest.mark.parametrize("name", EQUAL)
def test_what_matters_only_later_is_gathered_from_then_on(name):
    make, y = EQUAL[name]
    assert_equal(trained(make, 2, X, y), trained(make, 0, X, y), rel=1e-4)


class Lengths(keras.utils.PyDataset):
    """Batches of rows that get longer, as buckets of sentences do."""

    LENGTHS = (4, 5, 4, 7)

    def __len__(self):
        return len(self.LENGTHS)

    def __getitem__(self, index):
        length = self.LENGTHS[index]
        y = np.full((8, 1), 9.0 if length == 7 else 1.0, "float32") + numbers(index).normal(size=(8, 1)) / 9
        return numbers(index).normal(size=(8, length, 3)).astype("float32"), y.astype("float32")


def numbers(index):
    return np.random.default_rng(index)


def lengths_of_unknown_size():
    data = Lengths()
    specs = (tf.TensorSpec([None, None, 3]), tf.TensorSpec([None, 1]))
    made = tf.data.Dataset.from_generator(lambda: (data[i] for i in range(len(data))), output_signature=specs)
    return made.apply(tf.data.experimental.assert_cardinality(len(data)))


@pytest.mark.parametrize("data", [Lengths, lengths_of_unknown_size])
def test_batches_of_another_length_are_compared(data):
    def make():
        model = keras.Sequential(
            [keras.Input((None, 3)), layers.Dense(4), layers.GlobalAveragePooling1D(), layers.Dense(1)]
        )
        model.compile("sgd", above_a_margin)
        return model

    found, wanted = (trained(make, replicas, data(), batch_size=None) for replicas in (2, 0))
    assert_equal(found, wanted, rel=1e-4)


class OwnStep(keras.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((y - self(x, training=True)) ** 2) + self.more(x, y)
        self.apply_gradients(tape.gradient(loss, self.trainable_variables), y)
        return {"objective": loss}

    def more(self, x, y):
        return 0.0

    def apply_gradients(self, gradients, y):
        self.optimizer.apply(gradients, self.trainable_variables)


class EveryFourth(OwnStep):
    """A coupled term in every fourth step, as lazy regularization has it."""

    def more(self, x, y):
        is_due = tf.equal(tf.cast(self.optimizer.iterations, tf.int32) % 4, 3)
        return tf.cond(is_due, lambda: tf.math.reduce_std(self(x)), lambda: 0.0)


class Annealed(OwnStep):
    """A coupled term whose weight is 0 in the first step."""

    def more(self, x, y):
        return tf.cast(self.optimizer.iterations, tf.float32) * tf.math.reduce_std(self(x))


class Counts(OwnStep):
    """Counts rows of which the first batch has none."""

    def build(self, shape=None):
        super().build(shape)
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")

    def apply_gradients(self, gradients, y):
        super().apply_gradients(gradients, y)
        self.seen.assign_add(tf.reduce_sum(tf.cast(y > float(Y[:8].max()), tf.float32)))


REFUSED = {EveryFourth: "gradients that EveryFourth", Annealed: "gradients that Annealed", Counts: "seen is assigned"}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_matters_only_later_is_refused_by_name(kind):
    def make():
        model = kind([keras.Input((6,)), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01))
        return model

    with pytest.raises(CoupledRowsError, match=REFUSED[kind]):
        trained(make, 2, X, Y)
    assert trained(make, 2, X, Y, check_rows=False)


class TfNoise(layers.Layer):
    def call(self, x):
        return x + tf.random.normal(tf.shape(x))


class Samples(layers.Layer):
    """Draws in training and inference, as the sampling layer of a variational autoencoder."""

    def __init__(self):
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(3)

    def call(self, x):
        return x + keras.random.normal(tf.shape(x), seed=self.seed_generator)


DRAWING = {"tf.random": TfNoise, "a seed generator": Samples, "dropout": lambda: layers.Dropout(0.5)}


@pytest.mark.parametrize("name", DRAWING)
def test_steps_that_draw_random_numbers_are_compared(name):
    with scope_of(2):
        model = sequential(DRAWING[name])()
        coupled = sequential(DRAWING[name], lambda: Centred(name="centring"))()
    fit(model, X, Y, batch_size=8, verbose=0)
    proof = get_engine(model).checks.proofs["train"]
    assert proof.holds and proof.num_steps == 8
    with pytest.raises(CoupledRowsError, match="Layer 'centring'"):
        fit(coupled, X, Y, batch_size=8, verbose=0)


class SeededNoise(layers.Layer):
    """Noise whose seed is the same on all replicas: so is that of rows at the same place of each replica's share.

    Args:
        kind: what the seed is.
    """

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.kind = kind
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, x):
        self.count.assign(self.count + 1)
        if self.kind == "a number":
            return x + keras.random.normal(ops.shape(x), seed=3)
        if self.kind == "a constant":
            return tf.nn.experimental.stateless_dropout(x, 0.5, [1, 2])
        return x + tf.random.stateless_uniform(tf.shape(x), tf.stack([7, self.count.value]))


@pytest.mark.parametrize("kind", ["a number", "a constant", "a counter"])
def test_noise_of_rows_from_the_seed_of_all_replicas_is_refused(kind):
    with scope_of(2):
        model = sequential(lambda: SeededNoise(kind, name="noisy"))()
    with pytest.raises(
        CoupledRowsError, match=r"/noisy\w*/\w+/.* draws the same random numbers on every replica.*SeedGenerator"
    ):
        fit(model, X, Y, batch_size=8, verbose=0)


class NoisyGradients(OwnStep):
    """Noise of the weights' shapes is the same on all replicas, as it should be."""

    def apply_gradients(self, gradients, y):
        seed = tf.stack([3, tf.cast(self.optimizer.iterations, tf.int32)])
        super().apply_gradients([g + tf.random.stateless_normal(g.shape, seed) for g in gradients], y)


def test_noise_of_gradients_from_the_seed_of_all_replicas_is_that_of_one_device():
    def make():
        model = NoisyGradients([keras.Input((6,)), layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.02))
        return model

    assert_equal(trained(make, 2), trained(make, 0))


PLACES = {
    "sharded": {"optimizer_state": "sharded"},
    "host": {"optimizer_state": "host"},
    "16 bits": {"optimizer_slots_dtype": "bfloat16"},
    "stages": {"pipeline_stages": 2, "devices": ("CPU:0", "CPU:1", "CPU:2", "CPU:3")},
}


@pytest.mark.parametrize(
    "name", ["sharded", *[pytest.param(n, marks=pytest.mark.slow) for n in PLACES if n != "sharded"]]
)
def test_steps_whose_slots_are_elsewhere_are_compared(name):
    def fitted(*more):
        devices = ["CPU:0", "CPU:2"] if name == "stages" else ["CPU:0", "CPU:1"]
        with tf.distribute.MirroredStrategy(devices).scope():
            model = sequential(lambda: layers.Dense(8), *more)()
        fit(model, X, Y, batch_size=8, verbose=0, plan=plan_of_model(model, batch_size=8, **PLACES[name]))
        return get_engine(model).checks.proofs["train"]

    assert fitted().holds
    with pytest.raises(CoupledRowsError, match="Layer 'centring'"):
        fitted(lambda: Centred(name="centring"))


SEEN = []


class Shows(OwnStep):
    """A step whose Python code keeps, counts and prints."""

    count = 0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.traces, self.number = [], 0

    def more(self, x, y):
        self.traces.append(1)
        self.number += 1
        SEEN.append(1)
        print("in the step")
        tf.print("a step is run")
        return 0.0

    def train_step(self, data):
        SEEN.append(data)
        return super().train_step(data)


def test_what_a_step_shows_and_keeps_is_not_seen_twice(capfd):
    def shown(check_rows):
        SEEN.clear()
        with scope_of(2):
            model = Shows([keras.Input((6,)), layers.Dense(1)])
            model.compile("sgd")
        fit(model, X, Y, batch_size=8, verbose=0, check_rows=check_rows)
        said = capfd.readouterr()
        counts = said.out.count("in the step"), said.err.count("a step is run")
        return len(model.traces), model.number, len(SEEN), *counts

    assert shown(True) == shown(False)


@pytest.mark.parametrize(
    "drop", [(), (lambda: layers.Dropout(0.5), layers.BatchNormalization)], ids=["plain", "drawing"]
)
def test_comparing_changes_no_bit(drop):
    def everything(check_rows):
        keras.utils.set_random_seed(0)
        with scope_of(2):
            model = sequential(
                lambda: layers.Dense(8), *drop, metrics=[keras.metrics.MeanAbsoluteError, keras.metrics.R2Score]
            )()
        data = {"validation_data": (X[:20], Y[:20]), "batch_size": 10, "epochs": 2, "verbose": 0}
        history = fit(model, X, Y, check_rows=check_rows, **data).history
        results = evaluate(model, X, Y, verbose=0, check_rows=check_rows)
        outputs = predict(model, X, verbose=0, check_rows=check_rows)
        return [
            *history.values(),
            results,
            outputs,
            *(v.numpy() for v in (*model.variables, *model.optimizer.variables)),
        ]

    for one, other in zip(everything(True), everything(False), strict=True):
        np.testing.assert_array_equal(one, other)


class PaddedMean(layers.Layer):
    """Pads each row to the longest of the batch, and so depends on it."""

    def call(self, x):
        padded = x.to_tensor() if isinstance(x, tf.RaggedTensor) else x  # dense while Keras builds the model
        return tf.reduce_mean(padded, axis=1, keepdims=True)

    def compute_output_shape(self, shape):
        return (shape[0], 1)


def test_a_smaller_last_batch_of_ragged_rows_is_compared():
    """Only in the last batch, the longest row of a replica is shorter than that of the batch."""
    rows = tf.ragged.constant([[1.0] * (1 + i % 4) for i in range(18)])
    with scope_of(2):
        model = keras.Sequential([PaddedMean(), layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(CoupledRowsError, match=r"Layer 'padded_mean' .* on 2 rows"):
        fit(model, tf.data.Dataset.from_tensor_slices((rows, Y[:18])).batch(8), shuffle=False, verbose=0)


def test_a_smaller_last_batch_of_sparse_rows_is_compared():
    rows = tf.sparse.from_dense(np.where(X[:18] > 0, X[:18], 0))
    with scope_of(2):
        model = keras.Sequential([keras.Input((6,), sparse=True), layers.Dense(1)])
        model.compile("sgd", "mse")
    fit(model, tf.data.Dataset.from_tensor_slices((rows, Y[:18])).batch(8), shuffle=False, verbose=0)
    assert get_engine(model).checks.num_compared("train") == 3


ENGINES = []


class NotesEngine(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        ENGINES.append(get_engine(self.model))


class CompilesAgain(NotesEngine):
    """Between two epochs."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch:
            self.model.compile(self.model.optimizer, loss="mae")


class TracesAgain(NotesEngine):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch:
            self.model.make_train_function(force=True)


def num_compared(make, tmp_path, monkeypatch, launch, notes):
    """How many steps a run of two epochs of 8 steps has compared that `launch` starts again after the first."""
    for epochs, (started, attempt) in enumerate((("20260101-000000", 1), launch), start=1):
        monkeypatch.setenv("TFACCEL_LAUNCH_STARTED", started)
        monkeypatch.setenv("TFACCEL_LAUNCH_ATTEMPT", str(attempt))
        with scope_of(2):
            model = make()
        callbacks = [notes(), Resume(tmp_path / "run", state="restart")]
        fit(model, X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=callbacks)
    return ENGINES.pop().checks.num_compared("train")


PLAIN = sequential(loss="mse")
RESTARTED = ("20260101-000000", 2)


GATHERED = sequential(loss=lambda y, p: ops.max((y - p) ** 2))


@pytest.mark.parametrize(
    ("make", "launch", "notes", "numbers"),
    [
        (PLAIN, RESTARTED, NotesEngine, [8 + 1]),  # one of the second epoch, as without a restart
        (PLAIN, ("20260102-000000", 2), NotesEngine, [8]),  # another launch, whose first epoch this is
        (PLAIN, ("20260101-000000", 1), NotesEngine, [8]),  # no restart
        (PLAIN, RESTARTED, CompilesAgain, [1, 2]),  # the first step, and one that is due, of what is compiled then
        (GATHERED, RESTARTED, NotesEngine, [8]),  # a loss to be gathered
        (PLAIN, RESTARTED, TracesAgain, [1, 2]),
    ],
)
def test_workers_that_are_started_again_compare_the_next_step_that_is_due(
    make, launch, notes, numbers, tmp_path, monkeypatch
):
    assert num_compared(make, tmp_path, monkeypatch, launch, notes) in numbers


def test_what_is_traced_again_between_epochs_is_compared_anew():
    with scope_of(2):
        model = GATHERED()
    fit(model, X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[TracesAgain()])
    assert ENGINES.pop().checks.num_compared("train") in (1, 2)


def test_the_state_of_checks_is_that_of_its_moment(monkeypatch):
    monkeypatch.setenv("TFACCEL_LAUNCH_STARTED", "20260101-000000")
    with scope_of(2):
        model = PLAIN()
    fit(model, X, Y, batch_size=8, verbose=0, callbacks=[NotesEngine()])
    checks = ENGINES.pop().checks
    state = checks.get_state()
    checks.due("train", 0, 8)
    assert [one["counts"][0] for one in (state, checks.get_state())] == [{"train": 0}, {"train": 1}]
